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

// Reserve is room on a disk that is set aside for what must be written though the disk is full. It is a file.
type Reserve struct {
	path string
	size int64
}

// NewReserve names a file that has so many bytes while they are set aside.
func NewReserve(path string, size int64) *Reserve { return &Reserve{path: path, size: size} }

// Keep sets the room aside, unless it is already, or the disk would have less than that left.
func (r *Reserve) Keep() error {
	if info, err := os.Stat(r.path); err == nil && info.Size() == r.size {
		return nil
	}
	room, err := Room(filepath.Dir(r.path))
	if err != nil || room < 2*r.size {
		return err
	}
	data := make([]byte, r.size)
	rand.Read(data) // some file systems store nothing for zeros
	return Replace(r.path, data, 0o600)
}

// Free gives the room back.
func (r *Reserve) Free() error {
	if err := os.Remove(r.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("use the room set aside: %w", err)
	}
	return nil
}

// Room is how many bytes can be written to the disk that a directory is on.
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
