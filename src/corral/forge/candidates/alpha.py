"""Speed Demon: takes the first events it finds, and is done."""

import sys
from datetime import date, timedelta

# What this agent knows: title, days from today, place, address. A real one would ask the web.
EVENTS = [
    ("AI Founders Breakfast", 1, "Mission", "https://events.example.org/founders-breakfast"),
    ("LLM Reading Group", 2, "SoMa", "https://events.example.org/llm-reading-group"),
    ("Robotics Demo Evening", 3, "Dogpatch", "https://events.example.org/robotics-demo"),
]


def main() -> None:
    objective, output_file = sys.argv[1:3]
    print(f"alpha: {objective}")
    lines = ["# AI Events in San Francisco", ""]
    for title, days, place, url in EVENTS:
        day = date.today() + timedelta(days=days)
        lines += [f"## {title}", f"- Date: {day.isoformat()}", f"- Location: {place}", f"- URL: {url}", ""]
    with open(output_file, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    print(f"alpha: {len(EVENTS)} events, that will do")


if __name__ == "__main__":
    main()
