"""The result of a profile: tables, report, trace, files."""
