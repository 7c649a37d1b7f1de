// Package durable writes small files so that after a crash or power failure they have either the
// old or the new contents. A function that returned without an error has written to the disk. The
// package also prevents two processes from changing a directory at the same time.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Replace writes a file, replacing an existing one. Concurrent readers see the old or the new
// contents.
func Replace(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, mode, os.Rename)
}

// Create writes a new file. The error is fs.ErrExist if there is one already.
func Create(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, mode, func(from, to string) error {
		if err := os.Link(from, to); err != nil { // unlike a rename, it never replaces
			return err
		}
		return os.Remove(from)
	})
}

// SyncDir returns when files created, renamed and removed in a directory are so on the disk.
func SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

func write(path string, data []byte, mode fs.FileMode, place func(from, to string) error) (err error) {
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			f.Close()
			os.Remove(f.Name())
			err = fmt.Errorf("write %s: %w", path, err)
		}
	}()
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := place(f.Name(), path); err != nil {
		return err
	}
	return SyncDir(filepath.Dir(path))
}
