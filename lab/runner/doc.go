// Package runner makes the runs of an experiment: as many at a time as the machine bears (Governors), each
// again if it was disturbed (Runner), and none that an earlier session recorded (Ledger). A Reference flow
// shows how late the machine is. What a run does is its caller's, lab/experiment.
package runner
