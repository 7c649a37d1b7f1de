// Package optiontest inserts and parses a TCP option in each segment, to measure what that costs. Package option does
// so only until an exchange is complete. Only lab/bench may import this package.
package optiontest

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/detour-collective/dcol/internal/kernel/bpf/sockops"
)

//go:generate go run github.com/cilium/ebpf/cmd/bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -tags linux segments segments.c -- -O2 -Wall -Werror -idirafter /usr/include/x86_64-linux-gnu -idirafter /usr/include/aarch64-linux-gnu

// Work selects what is done with each segment.
type Work struct {
	// Insert adds an option of four bytes to the segments that accepted connections send.
	Insert bool
	// Parse looks for that option in the segments that arrive on connections that this host opened.
	Parse bool
	// Set also sets and reads a value of the socket in each case.
	Set bool
}

// Segments is the attached program.
type Segments struct {
	objects segmentsObjects
	link    link.Link
}

// Open attaches the program to the sockets of the thread's network namespace, at the root cgroup, until Segments is
// closed or its process ends. It affects connections that begin afterwards.
func Open(w Work) (*Segments, error) {
	spec, err := loadSegments()
	if err != nil {
		return nil, fmt.Errorf("read the embedded program: %w", err)
	}
	s := &Segments{}
	settings := map[string]any{"inserts": w.Insert, "parses": w.Parse, "sets": w.Set}
	s.link, err = sockops.Load("", spec, settings, &s.objects, func() *ebpf.Program { return s.objects.Segments })
	if err != nil {
		return nil, err
	}
	return s, nil
}

// Counts returns about how many segments got the option, and in how many it was found.
func (s *Segments) Counts() (inserted, parsed uint64, err error) {
	err = errors.Join(s.objects.Inserted.Get(&inserted), s.objects.Parsed.Get(&parsed))
	if err != nil {
		err = fmt.Errorf("read the program's counts: %w", err)
	}
	return inserted, parsed, err
}

// Close detaches the program.
func (s *Segments) Close() error { return errors.Join(s.link.Close(), s.objects.Close()) }
