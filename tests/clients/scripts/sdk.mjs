// The TypeScript SDK in Node: programs, files, sessions, terminals, the interpreter, previews and git.
import assert from 'node:assert/strict'

import { Daytona } from '@daytona/sdk'

const daytona = new Daytona()
const sandbox = await daytona.create()
try {
  const { process: programs, fs, git, codeInterpreter: interpreter } = sandbox

  const answer = await programs.executeCommand('echo hi; exit 2')
  assert.deepEqual([answer.exitCode, answer.result], [2, 'hi\n'])
  await assert.rejects(programs.executeCommand('sleep 600', undefined, undefined, 1), /1 s/)
  assert.equal((await programs.codeRun('print(6*7)')).result, '42\n')

  await fs.uploadFile(Buffer.from('hello'), 'd/ä x.txt')
  await fs.uploadFiles([
    { source: Buffer.from('1'), destination: 'd/1' },
    { source: Buffer.from('2'), destination: 'd/2' },
  ])
  assert.equal((await fs.downloadFile('d/ä x.txt')).toString(), 'hello')
  const [first, none] = await fs.downloadFiles([{ source: 'd/1' }, { source: 'd/none' }])
  assert.equal(first.result.toString(), '1')
  assert.match(none.error, /not found/)
  await assert.rejects(fs.downloadFile('d/none'), { name: 'DaytonaFileNotFoundError' })
  assert.deepEqual((await fs.listFiles('d')).map((file) => file.name).sort(), ['1', '2', 'ä x.txt'])
  assert.equal((await fs.getFileDetails('d/1')).size, 1)
  assert.deepEqual((await fs.findFiles('d', 'hell')).map((match) => match.line), [1])
  assert.equal((await fs.searchFiles('d', '*')).files.length, 3)
  assert.equal((await fs.replaceInFiles(['d/1'], '1', 'one'))[0].success, true)
  await fs.setFilePermissions('d/1', { mode: '600' })
  await fs.moveFiles('d/1', 'd/3')
  assert.equal((await fs.downloadFile('d/3')).toString(), 'one')
  await fs.createFolder('e', '755')
  await fs.deleteFile('d/3')

  await programs.createSession('a')
  const one = await programs.executeSessionCommand('a', { command: 'cd /tmp; echo out; echo err >&2' })
  assert.deepEqual([one.exitCode, one.stdout, one.stderr], [0, 'out\n', 'err\n'])
  const script = 'for i in 1 2 3; do echo $i; echo e$i >&2; sleep 0.2; done; pwd'
  const { cmdId } = await programs.executeSessionCommand('a', { command: script, runAsync: true })
  let out = ''
  let err = ''
  await programs.getSessionCommandLogs('a', cmdId, (part) => { out += part }, (part) => { err += part })
  assert.deepEqual([out, err], ['1\n2\n3\n/tmp\n', 'e1\ne2\ne3\n'])
  assert.equal((await programs.getSessionCommandLogs('a', cmdId)).stdout, out)
  assert.equal((await programs.getSessionCommand('a', cmdId)).exitCode, 0)
  assert.deepEqual((await programs.listSessions()).map((session) => session.sessionId), ['a'])
  await programs.deleteSession('a')

  let shown = ''
  const onData = (data) => { shown += Buffer.from(data).toString() }
  const terminal = await programs.createPty({ id: 'p', cols: 90, rows: 20, envs: { A: 'b' }, onData })
  await terminal.waitForConnection()
  await terminal.sendInput('stty size; echo $A; exit 3\n')
  assert.equal((await terminal.wait()).exitCode, 3)
  assert.match(shown, /20 90\r\nb\r\n/)

  assert.equal((await interpreter.runCode('x = 1\nprint(x)')).stdout, '1\n')
  assert.equal((await interpreter.runCode('1/0')).error.name, 'ZeroDivisionError')
  await assert.rejects(interpreter.runCode('while 1: pass', { timeout: 1 }), { name: 'DaytonaTimeoutError' })
  const context = await interpreter.createContext('/tmp')
  assert.deepEqual((await interpreter.listContexts()).map((each) => each.id), [context.id])
  assert.equal((await interpreter.runCode('import os; print(os.getcwd())', { context })).stdout, '/tmp\n')
  await interpreter.deleteContext(context)

  await fs.uploadFile(Buffer.from('made inside'), 'page.txt')
  await programs.createSession('web')
  await programs.executeSessionCommand('web', { command: 'python3 -m http.server --bind 127.0.0.1 8000', runAsync: true })
  const { url, token } = await sandbox.getPreviewLink(8000)
  const get = (from, headers = {}) => fetch(`${from}/page.txt`, { headers })
  let page
  for (const end = Date.now() + 60_000; Date.now() < end; await new Promise((done) => setTimeout(done, 100))) {
    page = await get(url, { 'X-Daytona-Preview-Token': token })
    if (page.status !== 502) break // until it listens
  }
  assert.deepEqual([page.status, await page.text()], [200, 'made inside'])
  assert.equal((await get(url)).status, 401)
  const signed = await sandbox.getSignedPreviewUrl(8000, 60)
  assert.equal(await (await get(signed.url)).text(), 'made inside')
  await sandbox.expireSignedPreviewUrl(8000, signed.token)
  assert.equal((await get(signed.url)).status, 401)
  await programs.deleteSession('web')

  await programs.executeCommand('git init -q -b main r')
  await fs.uploadFile(Buffer.from('x'), 'r/x')
  await git.add('r', ['x'])
  assert.match((await git.commit('r', 'first', 'A', 'a@example.com')).sha, /^[0-9a-f]{40}$/)
  assert.equal((await git.status('r')).currentBranch, 'main')
  assert.deepEqual((await git.branches('r')).branches, ['main'])
  await git.clone('/home/daytona/r', 'r2')
  await assert.rejects(git.status('nope'), { name: 'DaytonaGitRepoNotFoundError' })

  assert.equal(await sandbox.getUserHomeDir(), '/home/daytona')
} finally {
  await sandbox.delete()
}
console.log('came to its end')
process.exit(0) // its event socket would keep Node alive
