// Package probe makes traffic of known shapes between two hosts, in turns over plain TCP, MPTCP and MPTCP with
// detours, and measures it as the program sees it: the delays of replies, the goodput, and the path that each reply
// took. The voice assistant's shape is that of V.-H. Tran's thesis (2019, chapter 4).
//
// Client and server derive the sizes of everything from the shape and a seed (shape.go), so that only these two are
// sent (hello.go). A Client makes one exchange over one connection (exchange.go), a Campaign many in turns (run.go).
// Records are appended to a file, one JSON object a line (record.go); the package report sums them up.
//
// Only cmd/dcol and the lab import it.
package probe
