// Package campaign traces many destinations (run.go): a bounded number at a time, with a bounded rate of packets. Each
// result is written to a file at once (record.go), so that an interrupted campaign can be continued. Hosts whose owners
// asked not to be probed are left out (list.go). The payload of each probe names who sends it and why (trace.go).
//
// The package report sums results up, with the figures of G. Detal's thesis (2014, section 3.4).
package campaign
