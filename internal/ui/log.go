package ui

import (
	"encoding/base64"
	"fmt"
	"io"
	"time"

	"github.com/detour-collective/dcol/internal/api"
)

// Log writes connections of an attribution log as text, with the evidence if there is any. Times are in UTC. On a terminal,
// it folds long lines.
func Log(w io.Writer, l api.Log) error {
	return (&printer{w: w, columns: columnsOf(w)}).log(&l)
}

func (p *printer) log(l *api.Log) error {
	if len(l.Flows) == 0 {
		p.linef("The log has no such connection.")
		return p.err
	}
	var rows [][]string
	unknown := 0
	for _, f := range l.Flows {
		session := "-"
		if f.Session == "" {
			unknown++
		} else {
			session = f.Session[:min(8, len(f.Session))]
		}
		rows = append(rows, []string{
			logTime(f.Opened), lasted(f), f.Member, f.Kind, endpoint(f.Client), endpoint(f.Server), endpoint(f.Egress),
			counted(f.BytesFromClient), counted(f.BytesToClient), session,
		})
	}
	p.table("OPENED (UTC)|LASTED|MEMBER|KIND|FROM|SERVER|SERVER SEES|SENT|RECEIVED|SESSION", rows)
	if unknown > 0 {
		p.linef("The log names no session for %s: only the member is known.", count(unknown, "connection"))
	}
	for _, s := range l.Sessions {
		p.session(s)
	}
	return p.err
}

func (p *printer) session(s api.LogSession) {
	p.linef("")
	p.linef("Session %s of %s with waypoint %s in %q", s.Session, s.Member, s.Waypoint, s.Collective)
	p.linef("  opened       %s UTC, by the waypoint's clock", logTime(s.Opened))
	p.linef("  stated       %s UTC, by the member's clock", logTime(s.Stated))
	p.linef("  certificate  %s", s.Serial)
	for _, der := range s.Chain {
		p.copyablef("               %s", base64.StdEncoding.EncodeToString(der))
	}
	p.copyablef("  signed       %s", base64.StdEncoding.EncodeToString(s.Message))
	p.copyablef("  signature    %s", base64.StdEncoding.EncodeToString(s.Signature))
	if s.Proven {
		p.linef("  PROVEN: the member named in this certificate has signed that this session is its own.")
	} else {
		p.linef("  NOT PROVEN: %s", s.Why)
	}
}

func logTime(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05") }

func lasted(f api.LogFlow) string {
	if f.Closed.IsZero() {
		return "?"
	}
	return fmt.Sprint(f.Closed.Sub(f.Opened).Round(100 * time.Millisecond))
}

func counted(n *uint64) string {
	if n == nil {
		return "?"
	}
	return bytes(*n)
}
