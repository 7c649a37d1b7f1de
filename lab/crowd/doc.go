// Package crowd runs a collective of very many members on one machine. The coordinator has a process to itself,
// so that its resources can be measured. All members share another process.
//
//	benchmark                       process                 process
//	remote.Client ----- stdin ----> Hub: coordinator <====> Members: each with its own key, certificate,
//	       <----------- stdout ----                         JWT, TLS connection and record
//
// Members act as real ones: they join over HTTPS with an invitation, connect to the bus, publish a signed
// record, and receive all changes. But no machine can hold ten thousand verified copies of the directory. So
// only a sample of the members (Members.Sample) keeps a copy and applies revocation lists. The others record
// which changes they received, when, and whether one is missing.
//
// For lab/bench, and for cmd/dcol-lab, which runs the processes.
package crowd
