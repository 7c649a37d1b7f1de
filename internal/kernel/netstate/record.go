package netstate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/detour-collective/dcol/internal/durable"
)

const (
	recordVersion = 1
	bootIDKey     = "kernel/random/boot_id"
)

// Record changes sysctls and stores their previous values in a file, so that they can be restored
// even after a crash. The file is written before the kernel is changed. A record of an earlier boot
// or of another network namespace is dropped, because the state it describes is gone.
type Record struct {
	mu   sync.Mutex
	path string
	file recordFile
}

type recordFile struct {
	Version int            `json:"version"`
	BootID  string         `json:"boot_id"`
	NetNS   string         `json:"netns"`
	Sysctls []sysctlChange `json:"sysctls"`
}

type sysctlChange struct {
	Key    string `json:"key"`
	Before string `json:"before"`
	Set    string `json:"set,omitempty"` // empty: stored only because changing another key alters it
}

// OpenRecord reads the record at path, or starts an empty one. Nothing is written until Set or Keep. If the file is
// damaged, OpenRecord renames it and keeps its readable entries of this boot and namespace; see Damaged.
func OpenRecord(path string) (*Record, error) {
	bootID, err := Sysctl(bootIDKey)
	if err != nil {
		return nil, fmt.Errorf("open record %s: %w", path, err)
	}
	netns, err := currentNetNS()
	if err != nil {
		return nil, fmt.Errorf("open record %s: %w", path, err)
	}
	r := &Record{path: path, file: recordFile{Version: recordVersion, BootID: bootID, NetNS: netns}}
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err != nil {
		return nil, fmt.Errorf("open record: %w", err)
	}
	old, err := parseRecord(content)
	if err != nil {
		if err := os.Rename(path, asidePath(path, bootID)); err != nil {
			return nil, fmt.Errorf("move the damaged record aside: %w", err)
		}
		if r.file.Sysctls = salvage(content, bootID, netns); len(r.file.Sysctls) > 0 {
			err := r.save()
			return r, err
		}
		return r, nil
	}
	if old.BootID == bootID && old.NetNS == netns {
		r.file = old
	}
	return r, nil
}

// NetworkNamespace returns the identity of the calling thread's network namespace.
func NetworkNamespace() (device, inode uint64, err error) {
	var st unix.Stat_t
	if err := unix.Stat("/proc/thread-self/ns/net", &st); err != nil {
		return 0, 0, fmt.Errorf("identify the network namespace: %w", err)
	}
	return st.Dev, st.Ino, nil
}

func currentNetNS() (string, error) {
	device, inode, err := NetworkNamespace()
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%d:%d", device, inode), nil
}

// Set sets a sysctl. Restore will restore the value from before the first Set. If the sysctl already has the value and
// an earlier Set did not change it, nothing is recorded. changed reports whether the kernel's value was different.
func (r *Record) Set(key, value string) (changed bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now, err := Sysctl(key)
	if err != nil {
		return false, err
	}
	if now == value {
		return false, nil
	}
	if i := r.index(key); i >= 0 {
		r.file.Sysctls[i].Set = value
	} else {
		r.file.Sysctls = append(r.file.Sysctls, sysctlChange{Key: key, Before: now, Set: value})
	}
	if err := r.save(); err != nil {
		return false, err
	}
	return true, SetSysctl(key, value)
}

// Keep stores the value of a sysctl that a later Set of another one changes as a side effect: the kernel resets some
// when forwarding is switched. Restore works backwards, so it restores this one after the other.
func (r *Record) Keep(key string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.index(key) >= 0 {
		return nil
	}
	now, err := Sysctl(key)
	if err != nil {
		return err
	}
	r.file.Sysctls = append(r.file.Sysctls, sysctlChange{Key: key, Before: now})
	return r.save()
}

// Changed reports whether the record contains a change of the key.
func (r *Record) Changed(key string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.index(key)
	return i >= 0 && r.file.Sysctls[i].Set != ""
}

// Restore restores all values, the last change first, and removes the file. Values that others
// changed after us are left alone, and sysctls that no longer exist are skipped. Failed ones stay
// in the record. Restore may be repeated.
func (r *Record) Restore() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var failed []sysctlChange
	var errs []error
	for _, c := range slices.Backward(r.file.Sysctls) {
		if err := c.undo(); err != nil {
			failed = append(failed, c)
			errs = append(errs, err)
		}
	}
	slices.Reverse(failed)
	r.file.Sysctls = failed
	errs = append(errs, r.save())
	return errors.Join(errs...)
}

func (c sysctlChange) undo() error {
	now, err := Sysctl(c.Key)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if now == c.Before || (c.Set != "" && now != c.Set) {
		return nil
	}
	return SetSysctl(c.Key, c.Before)
}

func (r *Record) index(key string) int {
	return slices.IndexFunc(r.file.Sysctls, func(c sysctlChange) bool { return c.Key == key })
}

// save writes the record so that a crash at any moment leaves the old file or the new one.
func (r *Record) save() error {
	if len(r.file.Sysctls) == 0 {
		if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove record: %w", err)
		}
		return nil
	}
	content, err := json.MarshalIndent(r.file, "", "  ")
	if err != nil {
		return fmt.Errorf("encode record %s: %w", r.path, err)
	}
	if err := os.MkdirAll(filepath.Dir(r.path), 0o755); err != nil {
		return fmt.Errorf("save record: %w", err)
	}
	if err := durable.Replace(r.path, append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("save record: %w", err)
	}
	return nil
}
