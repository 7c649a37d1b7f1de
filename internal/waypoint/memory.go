package waypoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/durable"
	"github.com/detour-collective/dcol/internal/waypoint/giving"
	"github.com/detour-collective/dcol/internal/waypoint/lease"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// memory is the content of a file, which outlives agents, reboots and the table. It has the operator's switch, the used
// parts of quotas, members' ids, which are in the marks of the converter's cookies and sockets, and the ports at which the
// converter takes connections for members.
type memory struct {
	Version int                       `json:"version"`
	Off     *giving.Off               `json:"off,omitempty"`
	Used    giving.Ledger             `json:"used"`
	IDs     map[string]rules.MemberID `json:"ids,omitempty"` // by member
	// Members has the use of members with a quota of their own, by name. Holders has the keys of those who used it, by
	// name, and Former the use of earlier holders of these names, by key.
	Members  map[string]giving.Ledger `json:"members,omitempty"`
	Holders  map[string]string        `json:"holders,omitempty"`
	Former   map[string]giving.Ledger `json:"former,omitempty"`
	Incoming []lease.Port             `json:"incoming,omitempty"`
}

const memoryVersion = 1

// readMemory reads the file. It returns the zero value if there is none. It sets a damaged file aside, and
// returns damage, a sentence for the operator. The waypoint is then closed, because it may have been closed
// according to the file.
func readMemory(path string) (m memory, damage string, err error) {
	m.Version = memoryVersion
	m.Used.Turn(giving.MonthOf(time.Now()))
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return m, "", nil
	}
	if err != nil {
		return m, "", fmt.Errorf("read the waypoint's state: %w", err)
	}
	var read memory
	err = json.Unmarshal(data, &read)
	if err == nil && read.Version != memoryVersion {
		return m, "", fmt.Errorf("%s has version %d, this program knows %d: upgrade dcol, or move the file away", path, read.Version, memoryVersion)
	}
	if err == nil {
		return read, "", nil
	}
	aside := path + ".damaged"
	damage = fmt.Sprintf("%s was damaged (%v) and is now %s: the month's quota is counted from zero, and the waypoint is closed", path, err, aside)
	if err := os.Rename(path, aside); err != nil {
		return m, "", fmt.Errorf("set a damaged file aside: %w", err)
	}
	m.Off = &giving.Off{}
	return m, damage, nil
}

// settleMemory saves the count of the table, which is about to be removed, and forgets members' ids, because no mark has
// them any longer. It removes a file that has nothing else.
func settleMemory(path string) error {
	used, err := countedUse()
	if err != nil {
		return err
	}
	m, _, err := readMemory(path)
	if err != nil {
		return err
	}
	m.Used.Count(used)
	m.IDs, m.Incoming = nil, nil
	if m.Off != nil || !m.Used.IsZero() || len(m.Members) > 0 {
		return m.save(path)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the waypoint's state: %w", err)
	}
	return nil
}

// countedUse returns the table's count of the quota, in bytes; 0 without a quota or a table.
func countedUse() (uint64, error) {
	table, err := rules.Open(rules.Options{})
	if err != nil {
		return 0, err
	}
	defer table.Close()
	used, err := table.Used()
	if errors.Is(err, unix.ENOENT) {
		return 0, nil
	}
	return used, err
}

func (m memory) clone() memory {
	m.Used.Bytes, m.IDs, m.Holders = maps.Clone(m.Used.Bytes), maps.Clone(m.IDs), maps.Clone(m.Holders)
	m.Members, m.Former = cloneLedgers(m.Members), cloneLedgers(m.Former)
	return m
}

func cloneLedgers(all map[string]giving.Ledger) map[string]giving.Ledger {
	all = maps.Clone(all)
	for name, ledger := range all {
		ledger.Bytes = maps.Clone(ledger.Bytes)
		all[name] = ledger
	}
	return all
}

// memoryFile writes the file while an agent runs. A late write does not replace a newer edition.
type memoryFile struct {
	path string

	mu      sync.Mutex // held while writing
	edition uint64     // of the file
}

func (f *memoryFile) save(m memory, edition uint64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if edition < f.edition {
		return nil
	}
	if err := m.save(f.path); err != nil {
		return err
	}
	f.edition = edition
	return nil
}

// save writes the file. A crash at any moment leaves either the old or the new file.
func (m memory) save(path string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("save the waypoint's state: %w", err)
		}
	}()
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return durable.Replace(path, append(data, '\n'), 0o600) // it is on the disk before SwitchOff returns
}
