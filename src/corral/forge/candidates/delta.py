"""Optimist: divides before it counts, and crashes."""

import sys


def main() -> None:
    objective, output_file = sys.argv[1:3]
    print(f"delta: {objective}")
    events: list[str] = []  # it was sure to find some
    average = 100 / len(events)
    with open(output_file, "w", encoding="utf-8") as file:
        file.write(f"An average of {average} people come to each event.\n")


if __name__ == "__main__":
    main()
