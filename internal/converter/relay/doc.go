// Package relay is the process that relays converted connections, on the converter's host and on clients' hosts. It is
// not part of the agent, so that no connection ends when the agent does.
//
//	relay.go      Run: the process; it does what its State says
//	use.go        the use of converters by this host's programs
//	state.go      State, which the agent sends whenever something changes, and Status, the answer
//	control.go    the conversation of both, on a unix socket
//	handover.go   a new version of the process takes over the listeners; the old one relays what it has
//	listeners.go  the sockets that it listens on
//
// Without an agent the process continues with the last State. Members' cookies expire, so that it serves nobody for
// long. It ends when it has had neither an agent nor a connection for a while.
package relay
