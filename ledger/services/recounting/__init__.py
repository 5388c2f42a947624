"""A run's exposure counted again from its raw journal, in plain Python, by rules written a second time.

Nothing here is shared with the projection: no fold, no tree, no interval arithmetic. Two ways that agree are worth more than one that
was tested well, so what is alike by chance stays written twice.

| module | does |
|---|---|
| facts | reads the journal from its first entry on, and names what is wrong with the journal itself |
| placing | rank -> shard and data-parallel rank |
| groups | rows of ranks -> updates, discards, evaluations |
| saving | rows about checkpoints -> saves |
| lineage | attempts and saves -> the trajectory, and where each group lies |
| matrix | groups and fates -> the numbers of an exposure report |
| seen | ranges on the trajectory -> the coverage of each stream and epoch |
"""
