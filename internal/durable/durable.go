// Package durable writes small files so that a power cut, like a crash, leaves the old contents or the new,
// and never half of one. What returned without an error is on the disk. It also keeps two processes from changing
// one directory at once.
//
// It imports nothing of ours; whoever keeps state in files may import it.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// Replace writes a file, whatever was there. Who reads it meanwhile sees the old or the new contents.
func Replace(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, mode, os.Rename)
}

// Create writes a file where there is none; the error is fs.ErrExist if there is one.
func Create(path string, data []byte, mode fs.FileMode) error {
	return write(path, data, mode, func(from, to string) error {
		if err := os.Link(from, to); err != nil { // unlike a rename, it never replaces
			return err
		}
		return os.Remove(from)
	})
}

// SyncDir returns when what was created, renamed and removed in a directory is so on the disk.
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
