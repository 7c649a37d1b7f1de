// Package dissect compares what dcol reads in a capture with what tshark reads: all fields of each packet, and which
// subflows and tokens a connection has.
package dissect

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/detour-collective/dcol/internal/analyse/capture"
	"github.com/detour-collective/dcol/internal/packet"
	"github.com/detour-collective/dcol/internal/packet/tshark"
)

// Result has the number of compared packets and the differences.
type Result struct {
	Packets     int // TCP
	MPTCP       int // of these, with MPTCP options
	Connections int // of MPTCP
	// Fields counts the packets that have a field.
	Fields map[string]int
	// Differences are the first ones, each a sentence. Differing counts all.
	Differences []string
	Differing   int
}

// mostDifferences bounds Result.Differences.
const mostDifferences = 30

func (r *Result) differ(format string, args ...any) {
	r.Differing++
	if len(r.Differences) < mostDifferences {
		r.Differences = append(r.Differences, fmt.Sprintf(format, args...))
	}
}

// Compare reads a capture with dcol's code and by tshark.
func Compare(ctx context.Context, file string) (*Result, error) {
	files, err := capture.Open([]string{file})
	if err != nil {
		return nil, err
	}
	defer files.Close()
	theirs, err := startTshark(ctx, file)
	if err != nil {
		return nil, err
	}
	r := &Result{Fields: map[string]int{}}
	groups := grouping{}
	for number := 1; ; number++ {
		p := files.Next()
		row, more, err := theirs.next()
		if err != nil {
			return nil, errors.Join(err, theirs.close())
		}
		if (p != nil) != more {
			return nil, errors.Join(fmt.Errorf("%s: packet %d: only one of the two programs has it", file, number), theirs.close())
		}
		if p == nil {
			break
		}
		if row.IsTCP() {
			r.packet(number, p, row)
			groups.add(row)
		}
	}
	if err := errors.Join(theirs.close(), problems(files)); err != nil {
		return nil, err
	}
	if err := r.connections(ctx, file, groups); err != nil {
		return nil, err
	}
	return r, nil
}

func problems(files *capture.Merged) (err error) {
	for _, p := range files.Problems() {
		err = errors.Join(err, p)
	}
	return err
}

// packet compares a packet's fields.
func (r *Result) packet(number int, captured *capture.Packet, row tshark.Row) {
	ip := captured.IP()
	p, err := packet.Parse(ip)
	if err != nil || p.TCP == nil {
		r.differ("packet %d: dcol reads no TCP header: %v", number, err)
		return
	}
	r.Packets++
	if row["tcp.options.mptcp.subtype"] != "" {
		r.MPTCP++
	}
	for _, d := range row.Differences(p) {
		r.differ("packet %d: %s", number, d)
	}
	// The analysis reads packets by a quicker way of its own.
	var s packet.Summary
	switch ok := s.Summarise(ip, captured.Length); {
	case !ok:
		r.differ("packet %d: the analysis does not read it", number)
	case fmt.Sprint(s.Payload) != row["tcp.len"] || fmt.Sprint(s.Seq) != row["tcp.seq_raw"] || s.HasMPTCP != (row["tcp.options.mptcp.subtype"] != ""):
		r.differ("packet %d: the analysis reads %d bytes at %d, MPTCP %v", number, s.Payload, s.Seq, s.HasMPTCP)
	}
	for _, name := range tshark.Names() {
		if row[name] != "" {
			r.Fields[name]++
		}
	}
}

// reader reads tshark's lines.
type reader struct {
	cmd    *exec.Cmd
	lines  *bufio.Scanner
	names  []string
	stderr bytes.Buffer
}

func startTshark(ctx context.Context, file string) (*reader, error) {
	t := &reader{}
	// Two columns of the connections' are behind those of the packets'.
	t.cmd = exec.CommandContext(ctx, "tshark", append(tshark.Arguments(file), "-e", streamField, "-e", connectionField)...)
	t.cmd.Stderr = &t.stderr
	out, err := t.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := t.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start tshark: %w", err)
	}
	t.lines = bufio.NewScanner(out)
	t.lines.Buffer(nil, 1<<20)
	if !t.lines.Scan() {
		return nil, fmt.Errorf("tshark printed no header: %w", errors.Join(t.lines.Err(), t.close()))
	}
	t.names = strings.Split(t.lines.Text(), "\t")
	return t, nil
}

func (t *reader) next() (row tshark.Row, more bool, err error) {
	if !t.lines.Scan() {
		return nil, false, t.lines.Err()
	}
	row, err = tshark.NewRow(t.names, t.lines.Text())
	return row, true, err
}

// close waits for tshark's end.
func (t *reader) close() error {
	for t.lines.Scan() { // else it would wait for its reader
	}
	if err := t.cmd.Wait(); err != nil {
		return fmt.Errorf("tshark: %w: %s", err, bytes.TrimSpace(t.stderr.Bytes()))
	}
	return nil
}
