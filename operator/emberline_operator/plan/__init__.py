"""The pure middle: `decide(snapshot, install, now)` says what to write, what to report and when to look again."""
