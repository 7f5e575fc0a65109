"""Dreamer: runs without a fault, and writes rubbish."""

import sys


def main() -> None:
    objective, output_file = sys.argv[1:3]
    print(f"epsilon: {objective}")
    with open(output_file, "w", encoding="utf-8") as file:
        file.write("There are so many events in the city. Go out and find them!\n" * 3)
    print("epsilon: a masterpiece")


if __name__ == "__main__":
    main()
