// Builds the pause program, the first process of every pod sandbox.
module kuangchao/cluster/tools/pause

go 1.26
