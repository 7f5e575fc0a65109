"""Perfectionist: asks every source, and keeps also what it hears twice."""

import sys
import time
from datetime import date, timedelta

# What each of its sources says: title, days from today, place, address. A real one would ask the web.
SOURCES = {
    "the meetup calendar": [
        ("Agents in Production", 1, "SoMa", "https://events.example.org/agents-in-production"),
        ("Vector Search Night", 2, "Mission", "https://events.example.org/vector-search-night"),
        ("Founders Coffee", 3, "Mission", "ask at the counter"),
    ],
    "the university": [
        ("Seminar: Learning to Plan", 3, "Parnassus", "https://events.example.org/learning-to-plan"),
        ("Open Lab: Small Models", 4, "Parnassus", "https://events.example.org/open-lab"),
        ("Agents in Production", 1, "SoMa", "https://events.example.org/agents-in-production"),
    ],
    "the hackers": [
        ("AI for Good Hackathon", 5, "Fort Mason", "https://events.example.org/good-hackathon"),
        ("Prompt Golf", 4, "Sunset", "somewhere on their page"),
        ("Vector Search Night", 2, "Mission", "https://events.example.org/vector-search-night"),
    ],
    "the newsletter": [
        ("Women in AI Dinner", 2, "Hayes Valley", "https://events.example.org/women-in-ai"),
        ("AI for Good Hackathon", 5, "Fort Mason", "https://events.example.org/good-hackathon"),
        ("Agents in Production", 1, "SoMa", "https://events.example.org/agents-in-production"),
    ],
}
PAUSE_SECONDS = 0.4  # stands for the time that a source takes to answer


def main() -> None:
    objective, output_file = sys.argv[1:3]
    print(f"beta: {objective}")
    events = []
    for name, found in SOURCES.items():
        time.sleep(PAUSE_SECONDS)
        events += found
        print(f"beta: {name} has {len(found)} more, {len(events)} in all")
    lines = ["# AI Events in San Francisco", "", "Everything that there is, from all sources.", ""]
    for title, days, place, url in sorted(events, key=lambda event: event[1]):
        day = date.today() + timedelta(days=days)
        lines += [f"## {title}", f"- Date: {day.isoformat()}", f"- Location: {place}", f"- URL: {url}", ""]
    with open(output_file, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    print("beta: done, nothing is left out")


if __name__ == "__main__":
    main()
