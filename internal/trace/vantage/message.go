package vantage

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"

	"github.com/detour-collective/dcol/internal/trace"
	"github.com/detour-collective/dcol/internal/trace/campaign"
	"github.com/detour-collective/dcol/internal/trace/probe"
)

// Schema is the version of a Request and an Answer.
const Schema = "dcol.trace-vantage/1"

// The bounds of messages.
const (
	MaxDestinations = 10_000 // of a request
	maxRequest      = 1 << 20
	maxAnswer       = 4 << 10
	maxResult       = 256 << 10 // of a record; a path of 30 hops has some 15 KB
)

// Request asks a member to trace destinations. The probe is a SYN with the options that matter to MPTCP.
type Request struct {
	Schema       string       `json:"schema"`
	Contact      string       `json:"contact"` // as of campaign.ParseProbe
	Port         uint16       `json:"port"`
	Hops         int          `json:"hops"`
	Rate         float64      `json:"rate"` // packets per second at most
	Destinations []netip.Addr `json:"destinations"`
}

// Answer is the answer to a Request.
type Answer struct {
	Schema string `json:"schema"`
	// Refused is the reason why nothing is traced; empty: it is.
	Refused string  `json:"refused,omitempty"`
	Taken   int     `json:"taken"` // destinations, the first of the request
	Rate    float64 `json:"rate"`  // packets per second
}

// DefaultProbe is the probe of a trace without another one. The port is put in.
const DefaultProbe = "tcp{dst=%d} / mss(1460) / SACKP / TS / WSCALE / MPCAPABLE"

// check returns the probe of a request, or an error if the request is invalid. It puts the member's name into the contact.
func (r *Request) check(member string) (probe.Probe, error) {
	switch {
	case r.Schema != Schema:
		return nil, fmt.Errorf("it understands %s, not %q", Schema, r.Schema)
	case r.Port == 0:
		return nil, errors.New("the port is missing")
	case r.Hops < 1 || r.Hops > trace.MaxHops:
		return nil, fmt.Errorf("the number of hops must be between 1 and %d, not %d", trace.MaxHops, r.Hops)
	case r.Rate <= 0:
		return nil, fmt.Errorf("the rate must be above zero, not %v", r.Rate)
	case len(r.Destinations) == 0 || len(r.Destinations) > MaxDestinations:
		return nil, fmt.Errorf("a request has 1 to %d destinations, not %d", MaxDestinations, len(r.Destinations))
	}
	for _, d := range r.Destinations {
		if !d.IsValid() || d.Zone() != "" || d.Is4In6() {
			return nil, fmt.Errorf("%v is no address of a destination", d)
		}
	}
	return campaign.ParseProbe(fmt.Sprintf(DefaultProbe, r.Port), r.Contact+" (asked by "+member+")")
}

// errTooLong is the error of a line that is longer than allowed.
var errTooLong = errors.New("a line is too long")

// readLine reads a line of at most the given number of bytes, without its end.
func readLine(r *bufio.Reader, most int) (line []byte, err error) {
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > most {
			return nil, fmt.Errorf("%w: more than %d bytes", errTooLong, most)
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line[:len(line)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(line) > 0:
			return nil, io.ErrUnexpectedEOF
		default:
			return nil, err
		}
	}
}

// writeLine writes a value as a line.
func writeLine(w io.Writer, value any) error {
	line, err := json.Marshal(value)
	if err != nil {
		return err
	}
	_, err = w.Write(append(line, '\n'))
	return err
}
