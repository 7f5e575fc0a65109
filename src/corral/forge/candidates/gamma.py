"""Insider: asks those who know, and throws away what is of no use."""

import sys
import time
from datetime import date, timedelta

# What each of its sources says: title, days from today, place, address. A real one would ask the web.
SOURCES = {
    "a friend": [
        ("Agents in Production", 1, "SoMa", "https://events.example.org/agents-in-production"),
        ("Women in AI Dinner", 2, "Hayes Valley", "https://events.example.org/women-in-ai"),
        ("AI Film Festival", -20, "Castro", "https://events.example.org/film-festival"),
    ],
    "the hackers": [
        ("Seminar: Learning to Plan", 3, "Parnassus", "https://events.example.org/learning-to-plan"),
        ("Open Lab: Small Models", 4, "Parnassus", "https://events.example.org/open-lab"),
        ("Prompt Golf", 4, "Sunset", "somewhere on their page"),
        ("AI for Good Hackathon", 5, "Fort Mason", "https://events.example.org/good-hackathon"),
    ],
}
PAUSE_SECONDS = 0.2  # stands for the time that a source takes to answer


def belongs(days: int, url: str) -> bool:
    """In the coming week, and with an address."""
    return 0 <= days <= 7 and url.startswith("https://")


def main() -> None:
    objective, output_file = sys.argv[1:3]
    print(f"gamma: {objective}")
    events = []
    for name, found in SOURCES.items():
        time.sleep(PAUSE_SECONDS)
        good = [event for event in found if belongs(event[1], event[3])]
        events += good
        print(f"gamma: {name}: {len(good)} of {len(found)} belong here")
    lines = ["# AI Events in San Francisco", "", "The week ahead, and where to be.", ""]
    for title, days, place, url in sorted(events, key=lambda event: event[1]):
        day = date.today() + timedelta(days=days)
        lines += [f"## {title}", f"- Date: {day.isoformat()}", f"- Location: {place}", f"- URL: {url}", ""]
    with open(output_file, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    print(f"gamma: {len(events)} events, a hackathon among them")


if __name__ == "__main__":
    main()
