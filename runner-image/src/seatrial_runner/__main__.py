"""``python3 -m seatrial_runner``."""

from seatrial_runner.main import main

if __name__ == "__main__":
    main()
