// Package runner executes the runs of an experiment. Governors limit the number of runs at a time to what the machine can
// execute accurately. A Runner repeats runs that were disturbed. A Ledger records runs, so that a later session does not
// make them again. A Reference flow measures the lateness of the machine. The caller, lab/experiment, defines a run.
package runner
