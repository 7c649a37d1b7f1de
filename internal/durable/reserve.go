package durable

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"syscall"
)

// Reserve is a file that reserves disk space for data that must be written even if the disk is
// full.
type Reserve struct {
	path string
	size int64
}

// NewReserve returns a Reserve of that many bytes, which are not reserved yet.
func NewReserve(path string, size int64) *Reserve { return &Reserve{path: path, size: size} }

// Keep reserves the space, unless it is reserved already, or the disk would then have less than
// that left.
func (r *Reserve) Keep() error {
	if info, err := os.Stat(r.path); err == nil && info.Size() == r.size {
		return nil
	}
	room, err := Room(filepath.Dir(r.path))
	if err != nil || room < 2*r.size {
		return err
	}
	data := make([]byte, r.size)
	rand.Read(data) // some file systems do not store zeros
	return Replace(r.path, data, 0o600)
}

// Free releases the space.
func (r *Reserve) Free() error {
	if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("use the room set aside: %w", err)
	}
	return nil
}

// Room returns the free space for this process on a directory's disk, in bytes.
func Room(dir string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("find out how much room is left in %s: %w", dir, err)
	}
	if s.Bavail > math.MaxInt64/uint64(s.Bsize) {
		return math.MaxInt64, nil
	}
	return int64(s.Bavail) * s.Bsize, nil
}
