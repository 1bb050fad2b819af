"""Questions asked of the runtime, a room each; what they all record about the machine."""
