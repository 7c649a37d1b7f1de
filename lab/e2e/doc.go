// Package e2e has only tests: the whole product under faults, on the real
// kernel. Each test builds a network of namespaces, issues certificates with
// `dcol ca`, writes configuration files as a user would, runs the real dcol
// with real programs (curl, nginx, iperf3), breaks something, and demands that
// it is survived or clearly reported with its mend, and that a download under
// way meanwhile ends intact. Nothing imports it.
//
// main_test.go builds what is tested; world_test.go is the network, and
// member_test.go, transfer_test.go, packet_test.go and observe_test.go are what
// tests do with it. The other files are the tests, one file a kind of fault.
package e2e
