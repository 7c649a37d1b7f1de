// Package campaign traces many destinations: a bounded number at a time, with a bounded rate of packets. Results are
// lines of a file as soon as they are there, so that an interrupted campaign goes on where it was. Those who do not want
// to be probed are left out, and each probe has a text in its payload that names who sends it and why.
//
// The package report sums results up, with the figures of G. Detal's thesis (2014, section 3.4).
package campaign
