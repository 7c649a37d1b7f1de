// Package probe makes traffic of known shapes between two hosts, in turns over plain TCP, MPTCP and MPTCP with detours.
// It measures what a program would notice: the delays of replies and the goodput, and also the path of each reply. The
// shape of a voice assistant is that of V.-H. Tran's thesis (2019, chapter 4).
//
// Client and server derive all sizes from the shape and a seed (shape.go), so the client sends only these two
// (hello.go).
//
//	exchange.go serve.go    one exchange over one connection, at the client and at the server
//	paths.go                which subflow brought a reply
//	run.go                  Campaign: many exchanges in turns
//	record.go               results: a file with one JSON object a line
//	report/                 summaries of results
//	latest/                 a server's choice of the subflow for replies
//
// Only cmd/dcol and the lab import it.
package probe
