"use strict";
// Line by line, after Myers ("An O(ND) difference algorithm", 1986), with bounds: two texts that have little in common
// are not worth the time of whoever reads them.
const DIFF_MAX_LINES = 20000;
const DIFF_MAX_EDITS = 3000;

// Gives [{op: " " | "-" | "+", text, left, right}], or null when the two are too different.
function diffLines(leftText, rightText) {
  // The end of the last line begins no line of its own.
  const left = leftText.replace(/\n$/, "").split("\n");
  const right = rightText.replace(/\n$/, "").split("\n");
  if (left.length > DIFF_MAX_LINES || right.length > DIFF_MAX_LINES) return null;
  let start = 0;
  while (start < left.length && start < right.length && left[start] === right[start]) start++;
  let leftEnd = left.length;
  let rightEnd = right.length;
  while (leftEnd > start && rightEnd > start && left[leftEnd - 1] === right[rightEnd - 1]) {
    leftEnd--;
    rightEnd--;
  }
  const middle = shortestEdit(left.slice(start, leftEnd), right.slice(start, rightEnd));
  if (middle === null) return null;
  const found = [];
  for (let i = 0; i < start; i++) found.push({ op: " ", text: left[i], left: i + 1, right: i + 1 });
  for (const [op, i, j] of middle) {
    found.push({
      op,
      text: op === "+" ? right[start + j] : left[start + i],
      left: op === "+" ? 0 : start + i + 1,
      right: op === "-" ? 0 : start + j + 1,
    });
  }
  for (let i = leftEnd, j = rightEnd; i < left.length; i++, j++) {
    found.push({ op: " ", text: left[i], left: i + 1, right: j + 1 });
  }
  return found;
}

function shortestEdit(a, b) {
  const most = Math.min(a.length + b.length, DIFF_MAX_EDITS);
  const offset = most + 1;
  const reach = new Int32Array(2 * most + 3);
  const trace = [];
  for (let edits = 0; edits <= most; edits++) {
    for (let k = -edits; k <= edits; k += 2) {
      const down = k === -edits || (k !== edits && reach[offset + k - 1] < reach[offset + k + 1]);
      let x = down ? reach[offset + k + 1] : reach[offset + k - 1] + 1;
      let y = x - k;
      while (x < a.length && y < b.length && a[x] === b[y]) {
        x++;
        y++;
      }
      reach[offset + k] = x;
      if (x >= a.length && y >= b.length) {
        trace.push(reach.slice(offset - edits - 1, offset + edits + 2));
        return walkBack(trace, a.length, b.length);
      }
    }
    trace.push(reach.slice(offset - edits - 1, offset + edits + 2));
  }
  return null;
}

// trace[d] holds how far each diagonal from -d-1 to d+1 had come after d edits.
function walkBack(trace, endX, endY) {
  const steps = [];
  let x = endX;
  let y = endY;
  for (let edits = trace.length - 1; edits > 0; edits--) {
    const before = trace[edits - 1];
    const at = (k) => before[k + edits];
    const k = x - y;
    const down = k === -edits || (k !== edits && at(k - 1) < at(k + 1));
    const fromK = down ? k + 1 : k - 1;
    const fromX = at(fromK);
    const fromY = fromX - fromK;
    while (x > fromX && y > fromY && x > 0 && y > 0 && x - 1 >= (down ? fromX : fromX + 1)) {
      x--;
      y--;
      steps.push([" ", x, y]);
    }
    if (down) {
      y--;
      steps.push(["+", x, y]);
    } else {
      x--;
      steps.push(["-", x, y]);
    }
  }
  while (x > 0 && y > 0) {
    x--;
    y--;
    steps.push([" ", x, y]);
  }
  return steps.reverse();
}
