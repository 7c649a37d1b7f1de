// Package durable writes small files so that after a crash or power failure they have either the
// old or the new contents. A function that returned without an error has written to the disk. The
// package also prevents two processes from changing a directory at the same time.
//
// What root writes belongs to the owner of its directory, or of the replaced file. So the agent, which is not root where
// systemd runs it, can use what commands of root write into its directories.
package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
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
	if err := Adopt(f, path); err != nil {
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

// Adopt gives a file of root, which is or will be at path, to the owner of its directory. In a directory of root it gives it
// to the owner of the file that is at path.
func Adopt(f *os.File, path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	owner, err := ownerOf(filepath.Dir(path))
	if err == nil && owner.Uid == 0 {
		owner, err = ownerOf(path)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	own, err := f.Stat()
	if err != nil {
		return err
	}
	if st, ok := own.Sys().(*syscall.Stat_t); ok && st.Uid == owner.Uid && st.Gid == owner.Gid {
		return nil
	}
	// Root without CAP_CHOWN, as in some containers, keeps the file.
	if err := f.Chown(int(owner.Uid), int(owner.Gid)); !errors.Is(err, fs.ErrPermission) {
		return err
	}
	return nil
}

func ownerOf(path string) (*syscall.Stat_t, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil, fmt.Errorf("the owner of %s is not known", path)
	}
	return st, nil
}
