// Package present shows graphs of paths as text, JSON and SVG.
package present

import (
	"net/netip"
	"time"

	"github.com/detour-collective/dcol/internal/paths"
)

// Schema is the version of Paths.
const Schema = "dcol.paths/1"

// Report holds the results of an exploration, to be shown as text, JSON or SVG.
type Report struct {
	Name                string // the destination as the user gave it
	Source, Destination netip.Addr
	Protocol            string // "tcp" or "udp"
	Port                uint16
	Graph               *paths.Graph
	Distinct            []Line
	Session             *Session // nil: not requested
	Notes               []string
	Took                time.Duration
}

// Line is a path with the ports of a flow on it.
type Line struct {
	Ports    paths.Ports
	Vertices []netip.Addr
	Quality  *paths.Quality // nil: not measured
}

// Session is the path of a connection, and the ports of probes on the same path.
type Session struct {
	Port  uint16 // the connection's port at this host
	Probe Line
}

// Paths is the JSON form of a Report. Times are in milliseconds.
type Paths struct {
	Schema      string   `json:"schema"`
	Name        string   `json:"name,omitempty"`
	Source      string   `json:"source"`
	Destination string   `json:"destination"`
	Protocol    string   `json:"protocol"`
	Port        uint16   `json:"port"`
	Reached     bool     `json:"reached"`
	Count       int      `json:"paths"`
	Hops        []Hop    `json:"hops"`
	Distinct    []Flow   `json:"distinct"`
	Session     *Shared  `json:"session,omitempty"`
	Bound       float64  `json:"bound,omitempty"`
	PerRouter   bool     `json:"bound_per_router,omitempty"`
	Light       bool     `json:"light,omitempty"`
	Sent        int      `json:"packets_sent"`
	TookMS      float64  `json:"took_ms"`
	Notes       []string `json:"notes"`
}

// Hop has the vertices at a distance.
type Hop struct {
	Distance int      `json:"distance"`
	Vertices []Vertex `json:"routers"`
}

// Vertex is a router or the destination. Address is "" if it does not answer.
type Vertex struct {
	Address    string   `json:"address"`
	Before     []string `json:"before"`
	Last       bool     `json:"destination,omitempty"`
	Translated bool     `json:"translated,omitempty"`
	RTTMS      float64  `json:"rtt_ms,omitempty"`
	Flows      int      `json:"flows"`
}

// Flow is a flow with its path.
type Flow struct {
	SourcePort      uint16   `json:"source_port"`
	DestinationPort uint16   `json:"destination_port"`
	Path            []string `json:"path"`
	Measured        *Quality `json:"measured,omitempty"`
}

// Shared is a flow on the path of a session.
type Shared struct {
	SessionPort uint16 `json:"session_port"`
	Flow
}

// Quality is the loss and the round trips that the probes of a path showed. Round trips are absent if no probe was
// answered.
type Quality struct {
	Sent     int     `json:"sent"`
	Lost     int     `json:"lost"`
	LeastMS  float64 `json:"rtt_least_ms,omitempty"`
	MedianMS float64 `json:"rtt_median_ms,omitempty"`
	MostMS   float64 `json:"rtt_most_ms,omitempty"`
}

// JSON returns a report in its JSON form.
func JSON(r Report) Paths {
	g := r.Graph
	p := Paths{
		Schema: Schema, Name: r.Name, Source: r.Source.String(), Destination: r.Destination.String(),
		Protocol: r.Protocol, Port: r.Port, Reached: g.Reached, Count: g.Paths(), Hops: []Hop{}, Distinct: []Flow{},
		Bound: g.Bound, PerRouter: g.PerRouter, Light: g.Light, Sent: g.Probes, TookMS: ms(r.Took), Notes: r.Notes,
	}
	if p.Notes == nil {
		p.Notes = []string{}
	}
	for _, h := range g.Hops {
		hop := Hop{Distance: h.Distance}
		for _, v := range h.Vertices {
			hop.Vertices = append(hop.Vertices, Vertex{
				Address: name(v.Addr), Before: names(v.Before), Last: v.Last, Translated: v.Translated,
				RTTMS: ms(v.RTT), Flows: v.Probes,
			})
		}
		p.Hops = append(p.Hops, hop)
	}
	for _, l := range r.Distinct {
		p.Distinct = append(p.Distinct, flow(l))
	}
	if r.Session != nil {
		p.Session = &Shared{r.Session.Port, flow(r.Session.Probe)}
	}
	return p
}

func flow(l Line) Flow {
	f := Flow{SourcePort: l.Ports.Source, DestinationPort: l.Ports.Destination, Path: names(l.Vertices)}
	if q := l.Quality; q != nil {
		f.Measured = &Quality{q.Sent, q.Lost, ms(q.Least), ms(q.Median), ms(q.Most)}
	}
	return f
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func name(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

func names(all []netip.Addr) []string {
	texts := []string{}
	for _, a := range all {
		texts = append(texts, name(a))
	}
	return texts
}
