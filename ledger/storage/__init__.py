"""The only room that speaks SQL: tables, the journal, projections, and the two databases' differences."""
