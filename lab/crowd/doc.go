// Package crowd is a collective of very many members on one machine: a coordinator in a process of its own,
// so that what it uses is its own, and all members in another.
//
//	who measures                    process                 process
//	Remote.Do(Order) --- stdin ---> Hub: coordinator <====> Members: each with its own key, certificate,
//	       <------------ stdout ---                         JWT, TLS connection and record
//
// What members do is what real ones do: they join over HTTPS with an invitation, connect to the bus, publish a
// signed record, and hear all that is told. But of ten thousand copies of the directory, each verified, no
// machine is large enough: a sample of the members (Members.Sample) has one, and takes revocation lists. The
// others note which changes they were told, whether one is missing, and when each came.
//
// For lab/bench, and for the hidden commands `dcol-lab crowd` that are its processes.
package crowd
