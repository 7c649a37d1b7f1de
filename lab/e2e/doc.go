// Package e2e tests the whole product under faults, on the real kernel. Each test builds a network of
// namespaces, issues certificates with `dcol ca`, writes configuration files as a user would, and runs dcol
// with real programs (curl, nginx, iperf3). It then breaks something. dcol must survive it or report it with
// a remedy, and a running download must complete intact. Nothing imports this package.
//
// main_test.go builds the programs. world_test.go is the network. member_test.go, transfer_test.go,
// packet_test.go and observe_test.go are helpers. Each other file has the tests for one kind of fault.
package e2e
