package vantage

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/printable"
	"github.com/detour-collective/dcol/internal/trace/campaign"
)

// RefusedError is the error of a request that a member refused. Why is its own text.
type RefusedError struct{ Member, Why string }

func (e *RefusedError) Error() string { return fmt.Sprintf("%s does not trace: %s", e.Member, e.Why) }

// Ask asks a member to trace, and calls take with each result, which is labelled with the member's name. names has the
// names of the request's destinations, in the same order. The caller need not call stream.CloseWrite, because a request
// is a line. The Answer has the number of destinations that the member takes.
func Ask(stream io.ReadWriter, member string, r Request, names []string, take func(*campaign.Record) error) (Answer, error) {
	var answer Answer
	if err := writeLine(stream, r); err != nil {
		return answer, fmt.Errorf("ask %s to trace: %w", member, err)
	}
	reader := bufio.NewReader(stream)
	line, err := readLine(reader, maxAnswer)
	if err == nil {
		err = json.Unmarshal(line, &answer)
	}
	switch {
	case err != nil:
		return answer, fmt.Errorf("read the answer of %s: %w", member, err)
	case answer.Refused != "":
		return answer, &RefusedError{member, printable.Text(answer.Refused)}
	case answer.Schema != Schema || answer.Taken < 1 || answer.Taken > len(r.Destinations):
		return answer, fmt.Errorf("%s answers %q, and takes %d of %d destinations", member, answer.Schema, answer.Taken, len(r.Destinations))
	}
	wanted := map[netip.Addr]string{}
	for i, d := range r.Destinations[:answer.Taken] {
		wanted[d] = names[i]
	}
	for {
		line, err := readLine(reader, maxResult)
		if err != nil {
			return answer, fmt.Errorf("read results of %s: %w", member, err)
		}
		if len(line) == 0 {
			return answer, nil
		}
		result, err := parseResult(line, member, wanted, time.Now())
		if err != nil {
			return answer, fmt.Errorf("%s sends results that are not to be used: %w", member, err)
		}
		if err := take(result); err != nil {
			return answer, err
		}
	}
}

// parseResult reads a result. Its destination must be in wanted, and parseResult removes it from there. It also
// replaces the origin and time that the result states by what is known.
func parseResult(line []byte, member string, wanted map[netip.Addr]string, now time.Time) (*campaign.Record, error) {
	var r campaign.Record
	decoder := json.NewDecoder(bytes.NewReader(line))
	if err := decoder.Decode(&r); err != nil {
		return nil, err
	}
	addr, err := netip.ParseAddr(r.Name)
	if err != nil {
		return nil, err
	}
	name, asked := wanted[addr]
	switch {
	case r.Check() != nil:
		return nil, r.Check()
	case !asked:
		return nil, fmt.Errorf("%v was not asked for, or comes twice", addr)
	case r.Trace == nil && r.Error == "" && r.Skipped == "":
		return nil, errors.New("a result without a trace")
	case r.Trace != nil && r.Trace.Destination != addr.String():
		return nil, fmt.Errorf("the trace of %v is one of %q", addr, r.Trace.Destination)
	}
	delete(wanted, addr)
	r.Name, r.From, r.Time = name, member, now.UTC().Truncate(time.Millisecond)
	if r.Trace != nil {
		r.Trace.Name = name
	}
	return &r, nil
}
