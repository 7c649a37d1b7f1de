package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/detour-collective/dcol/internal/durable"
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
	// longestMemory bounds the size of a file that is read.
	longestMemory = 8 << 20
)

// MemoryFile is the file that keeps what the path manager has measured.
func MemoryFile(stateDir string) string { return filepath.Join(stateDir, "client-measured.json") }

// memoryFile keeps what the path manager has measured. Only the client's loop uses it.
type memoryFile struct {
	path string // empty: nothing is kept
	log  *slog.Logger
	saving
}

// saving decides when a file is written in the background.
type saving struct {
	saved time.Time
	busy  bool // it is being written
	// failed is set while it cannot be written, which is logged once.
	failed bool
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

// read returns what is in the file. A file that cannot be understood is set aside, and the client begins anew.
func (f *memoryFile) read() path.Memory {
	data, err := readBounded(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return path.Memory{}
	}
	var form memoryForm
	if err == nil {
		form, err = parseMemory(data)
	}
	if err != nil {
		aside := damaged(f.path)
		moved := os.Rename(f.path, aside)
		f.log.Warn("what was measured of waypoints is forgotten: the file is damaged, and was set aside; delete it if nobody wants to look at it",
			"file", aside, "err", errors.Join(err, moved))
		return path.Memory{}
	}
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

func readBounded(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, longestMemory+1))
	if err == nil && len(data) > longestMemory {
		err = fmt.Errorf("%s is longer than %d bytes", name, longestMemory)
	}
	return data, err
}

func parseMemory(data []byte) (form memoryForm, err error) {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&form); err != nil {
		return form, err
	}
	if form.Version < 1 || form.Version > memoryVersion {
		return form, fmt.Errorf("its version is %d; this agent reads 1 to %d", form.Version, memoryVersion)
	}
	return form, nil
}

// due reports whether the file is to be written, and records that it is.
func (s *saving) due(now time.Time, every time.Duration) bool {
	if s.saved.IsZero() {
		s.saved = now
	}
	if s.busy || now.Sub(s.saved).Abs() < every {
		return false
	}
	s.saved, s.busy = now, true
	return true
}

// ended records the result of a write. It reports whether a failure is to be logged: the first in a row is.
func (s *saving) ended(err error) (log bool) {
	log = err != nil && !s.failed
	s.busy, s.failed = false, err != nil
	return log
}

// ended records the result of a write. A failure is logged once: the client works without.
func (f *memoryFile) ended(err error) {
	if f.saving.ended(err) {
		f.log.Warn("what was measured of waypoints cannot be saved; after a restart it is measured again", "file", f.path, "err", err)
	}
}

// saveMemory saves what was measured, if that is due. The disk may be slow, so it is written in the background.
func (c *Client) saveMemory(ctx context.Context, now time.Time) {
	if c.memory.path == "" || !c.memory.due(now, saveMemoryEvery) {
		return
	}
	file, memory := c.memory.path, c.manager.Memory()
	c.requests.Go(func() {
		err := writeMemory(file, memory)
		c.post(ctx, func(time.Time) { c.memory.ended(err) })
	})
}

// saveLast saves what was measured when the loop has ended.
func (f *memoryFile) saveLast(memory path.Memory) {
	if f.path != "" {
		f.ended(writeMemory(f.path, memory))
	}
}

// Forget removes what was measured of waypoints and concluded about members. No agent may run.
func Forget(stateDir string) error {
	for _, name := range []string{MemoryFile(stateDir), damaged(MemoryFile(stateDir))} {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// damaged returns the name of a file that is set aside because it is damaged.
func damaged(file string) string { return file + ".damaged" }

// writeMemory writes a file, or removes it if there is nothing to remember.
func writeMemory(file string, memory path.Memory) error {
	if len(memory.Trails) == 0 && len(memory.Verdicts) == 0 {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
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
	data, err := json.MarshalIndent(form, "", "\t")
	if err != nil {
		return err
	}
	return durable.Replace(file, append(data, '\n'), 0o600)
}
