package scenario

import (
	"cmp"
	"time"

	"github.com/detour-collective/dcol/internal/units"
)

// WorkloadKind selects the programs that make the traffic.
type WorkloadKind string

// The workloads.
const (
	// Upload is iperf3 from client to server.
	Upload WorkloadKind = "upload"
	// Download is iperf3 from server to client.
	Download WorkloadKind = "download"
	// HTTP is a file fetched by curl from nginx, once or several times in a row.
	HTTP WorkloadKind = "http"
	// Stream is messages at a fixed interval over one connection.
	Stream WorkloadKind = "stream"
	// Requests is one connection over which a request is sent at a fixed interval, and answered.
	Requests WorkloadKind = "requests"
	// Command is a pair of programs of the author's.
	Command WorkloadKind = "command"
)

// Placeholders in commands for the server's address and, for clients, the local address and the URL of the proxy.
const (
	AddressMark = "{address}"
	PortMark    = "{port}"
	LocalMark   = "{local}"
	ProxyMark   = "{proxy}"
)

// Workload is the traffic of one run.
type Workload struct {
	Kind     WorkloadKind   `toml:"kind"`
	Client   string         `toml:"client"`
	Server   string         `toml:"server"`
	Duration units.Duration `toml:"duration"`
	Skip     units.Duration `toml:"skip"`
	// Size is the size of the file, or of the answer to a request.
	Size units.Size `toml:"size"`
	// Count is the number of downloads of the file.
	Count int `toml:"count"`
	// Rate is the rate of a stream, which counts only the program's own bytes.
	Rate units.Rate `toml:"rate"`
	// Interval is the time from one message or request to the next.
	Interval units.Duration `toml:"interval"`
	// Direction is the direction of a stream: Upload or Download.
	Direction WorkloadKind `toml:"direction"`
	Port      int          `toml:"port"`
	// ClientCommand and ServerCommand may contain the placeholders.
	ClientCommand []string `toml:"client_command"`
	ServerCommand []string `toml:"server_command"`
}

// WorkloadChange overrides parts of the workload in a variant. Zero fields keep the scenario's values. The direction
// of an upload or a download is its kind.
type WorkloadChange struct {
	Duration  units.Duration `toml:"duration"`
	Skip      units.Duration `toml:"skip"`
	Size      units.Size     `toml:"size"`
	Count     int            `toml:"count"`
	Rate      units.Rate     `toml:"rate"`
	Interval  units.Duration `toml:"interval"`
	Direction WorkloadKind   `toml:"direction"`
}

// Over returns a workload with the changes of c.
func (c WorkloadChange) Over(w Workload) Workload {
	w.Duration = cmp.Or(c.Duration, w.Duration)
	w.Skip = cmp.Or(c.Skip, w.Skip)
	w.Size = cmp.Or(c.Size, w.Size)
	w.Count = cmp.Or(c.Count, w.Count)
	w.Rate = cmp.Or(c.Rate, w.Rate)
	w.Interval = cmp.Or(c.Interval, w.Interval)
	if w.IsTransfer() {
		w.Kind = cmp.Or(c.Direction, w.Kind)
	} else {
		w.Direction = cmp.Or(c.Direction, w.Direction)
	}
	return w
}

// WorkloadIn returns the workload under a variant.
func (s *Scenario) WorkloadIn(v Variant) Workload { return v.Workload.Over(s.Workload) }

// IsTransfer reports whether iperf3 runs the workload.
func (w Workload) IsTransfer() bool { return w.Kind == Upload || w.Kind == Download }

// MadeByDCol reports whether dcol's own programs run the workload.
func (w Workload) MadeByDCol() bool { return w.Kind == Stream || w.Kind == Requests }

// RunsDCol reports whether any host runs dcol, even if only for the workload.
func (s *Scenario) RunsDCol() bool { return s.UsesDCol() || s.Workload.MadeByDCol() }

// HasLatency reports whether the workload consists of messages, requests or files, whose times are measured one by one.
func (w Workload) HasLatency() bool { return w.MadeByDCol() || w.Kind == HTTP }

// MessageSize returns the size of each message of a stream, in bytes.
func (w Workload) MessageSize() int {
	return int(float64(w.Rate) / 8 * w.Interval.Seconds())
}

// Turns returns the number of messages or requests in the duration.
func (w Workload) Turns() int {
	if w.Interval <= 0 {
		return 0
	}
	return int(w.Duration / w.Interval)
}

// RunTime estimates the duration of a run in a variant. For a workload with a size, it is the time that the slowest
// link needs for it. It returns 0 if the duration is unknown.
func (s *Scenario) RunTime(v Variant) time.Duration {
	w := s.WorkloadIn(v)
	if w.Duration > 0 {
		return w.Duration.Std()
	}
	var slowest units.Rate
	for _, l := range s.Shapes(v) {
		if l.Rate != nil && *l.Rate > 0 && (slowest == 0 || *l.Rate < slowest) {
			slowest = *l.Rate
		}
	}
	if slowest == 0 {
		return 0
	}
	bits := float64(w.Size) * 8 * float64(max(w.Count, 1))
	return time.Duration(bits / float64(slowest) * float64(time.Second))
}
