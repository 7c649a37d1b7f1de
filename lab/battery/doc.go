// Package battery tests and measures any implementation of MPTCP for Linux in networks of the lab: the 15 tests of
// Ingebretsen and Selvik (NorNet, 2016), handovers and the signalling of addresses as in Detal's thesis (2014, 2.3 and
// 2.4), and sweeps. Each test has its question and the published answer.
//
// tests.go is the table of tests. network.go builds their networks, implementation.go sets up who manages the paths,
// flow.go makes and watches traffic, measure_*.go measure. run.go hands all of it to lab/runner, which runs networks in
// parallel, repeats what the machine was too busy for, and resumes.
package battery
