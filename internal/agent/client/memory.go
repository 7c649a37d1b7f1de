package client

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/internal/path"
	"github.com/detour-collective/dcol/internal/path/claim"
	"github.com/detour-collective/dcol/internal/path/measure"
)

const (
	// saveMemoryEvery bounds how much an agent that is killed forgets.
	saveMemoryEvery = 5 * time.Minute
	// memoryVersion is the version of the file's format. Version 1, which lacks goodput and packets, and version 2, which lacks
	// verdicts about members, are read, too.
	memoryVersion = 3
)

// memoryPath returns the name of the file that keeps what the path manager has measured.
func memoryPath(stateDir string) string { return filepath.Join(stateDir, "client-measured.json") }

func newMemoryFile(stateDir string, log *slog.Logger) stateFile {
	return stateFile{
		path: memoryPath(stateDir), every: saveMemoryEvery, log: log,
		damage:  "the measurements of waypoints are forgotten",
		unsaved: "after a restart, waypoints are measured again",
	}
}

// memoryForm is the form of the file.
type memoryForm struct {
	Version int          `json:"version"`
	Addrs   []netip.Addr `json:"addresses"`
	Trails  []trailForm  `json:"measured"`
	// Verdicts are about members' claims, by member and waypoint.
	Verdicts map[string]map[string]verdictForm `json:"members,omitempty"`
}

type verdictForm struct {
	Agreed bool      `json:"agreed"`
	At     time.Time `json:"at"`
}

type trailForm struct {
	Waypoint string       `json:"waypoint,omitempty"`
	Network  netip.Prefix `json:"network"`
	At       time.Time    `json:"at"`
	TripMS   float64      `json:"trip_ms"`
	Loss     float64      `json:"loss"`
	Shunned  time.Time    `json:"avoided_until,omitzero"`
	Times    int          `json:"times,omitempty"`
	Packets  *uint64      `json:"packets,omitempty"` // absent in version 1
	Goodput  float64      `json:"goodput_bps,omitempty"`
	Gave     time.Time    `json:"goodput_at,omitzero"`
	Kind     measure.Kind `json:"traffic,omitempty"`
}

// packets returns in how many packets the loss was seen. Version 1 kept only losses that were certain.
func (t *trailForm) packets() uint64 {
	if t.Packets == nil {
		return path.EnoughPackets
	}
	return *t.Packets
}

// readMemory returns what an earlier agent measured; the zero value if nothing is known.
func readMemory(f *stateFile) (memory path.Memory) {
	f.read(func(data []byte) error {
		form, err := parseMemory(data)
		if err == nil {
			memory = form.memory()
		}
		return err
	})
	return memory
}

// memory translates the file into the path manager's terms.
func (form *memoryForm) memory() path.Memory {
	memory := path.Memory{Addrs: form.Addrs}
	for _, t := range form.Trails {
		trip := time.Duration(t.TripMS * float64(time.Millisecond))
		memory.Trails = append(memory.Trails, path.Trail{
			Waypoint: t.Waypoint, Network: t.Network, At: t.At, Trip: trip, Loss: t.Loss, Shunned: t.Shunned, Times: t.Times,
			Packets: t.packets(), Goodput: t.Goodput, GoodputAt: t.Gave, Kind: t.Kind,
		})
	}
	for member, about := range form.Verdicts {
		for waypoint, v := range about {
			memory.Verdicts = append(memory.Verdicts, claim.Verdict{Member: member, Waypoint: waypoint, Agreed: v.Agreed, At: v.At})
		}
	}
	return memory
}

func parseMemory(data []byte) (form memoryForm, err error) {
	if err := parseStrictly(data, &form); err != nil {
		return form, err
	}
	if form.Version < 1 || form.Version > memoryVersion {
		return form, fmt.Errorf("its version is %d; this agent reads 1 to %d", form.Version, memoryVersion)
	}
	return form, nil
}

// Forget removes what was measured of waypoints and concluded about members. No agent may run.
func Forget(stateDir string) error {
	for _, name := range []string{memoryPath(stateDir), damaged(memoryPath(stateDir))} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// memoryOf returns the form of the file in which memory is kept; nil if there is nothing to remember.
func memoryOf(memory path.Memory) any {
	if len(memory.Trails) == 0 && len(memory.Verdicts) == 0 {
		return nil
	}
	form := memoryForm{Version: memoryVersion, Addrs: memory.Addrs}
	for _, t := range memory.Trails {
		form.Trails = append(form.Trails, trailForm{
			Waypoint: t.Waypoint, Network: t.Network, At: t.At.Round(0), TripMS: float64(t.Trip) / float64(time.Millisecond),
			Loss: t.Loss, Shunned: t.Shunned.Round(0), Times: t.Times,
			Packets: &t.Packets, Goodput: t.Goodput, Gave: t.GoodputAt.Round(0), Kind: t.Kind,
		})
	}
	for _, v := range memory.Verdicts {
		if form.Verdicts == nil {
			form.Verdicts = make(map[string]map[string]verdictForm)
		}
		if form.Verdicts[v.Member] == nil {
			form.Verdicts[v.Member] = make(map[string]verdictForm)
		}
		form.Verdicts[v.Member][v.Waypoint] = verdictForm{v.Agreed, v.At.Round(0)}
	}
	return form
}
