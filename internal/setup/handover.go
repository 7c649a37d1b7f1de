package setup

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/detour-collective/dcol/internal/config"
)

// HandOver gives the agent's user what the agent needs of files that root wrote: all in the folders that systemd made for
// the agent, the files that the configuration names, and others that the agent reads. The user owns the folders and may have
// put anything into them, so links are not followed there.
func HandOver(uid, gid int, folders []string, configuration string, others ...string) error {
	var errs []error
	for _, folder := range folders {
		errs = append(errs, handOverFolder(uid, gid, folder))
	}
	// The agent may read the configuration, and what is public. It must own its key, which nobody else may read.
	errs = append(errs, letRead(gid, filepath.Dir(configuration)))
	for _, path := range others {
		errs = append(errs, letRead(gid, path))
	}
	c, err := config.Load(configuration)
	if err != nil {
		return errors.Join(append(errs, letRead(gid, configuration))...) // the agent says what is wrong with it
	}
	readable := []string{configuration, c.Identity.Certificate, c.Identity.CA, c.Identity.CRL}
	owned := []string{c.Identity.Key}
	if c.Has(config.RoleRouter) {
		owned = append(owned, c.Router.SecretFile)
	}
	for _, path := range readable {
		if outside(path, folders) {
			errs = append(errs, letRead(gid, path))
		}
	}
	for _, path := range owned {
		if outside(path, folders) {
			errs = append(errs, letOwn(uid, gid, path))
		}
	}
	return errors.Join(errs...)
}

// handOverFolder gives a folder and all in it to the user. A file with several names is left alone: another of its names may
// be elsewhere.
func handOverFolder(uid, gid int, folder string) error {
	root, err := os.OpenRoot(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("give %s to the agent's user: %w", folder, err)
	}
	defer root.Close()
	return fs.WalkDir(root.FS(), ".", func(name string, _ fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a relay that goes on has removed it
		}
		if err != nil {
			return err
		}
		info, err := root.Lstat(name)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		st, ok := info.Sys().(*syscall.Stat_t)
		if !ok || int(st.Uid) == uid && int(st.Gid) == gid || !info.IsDir() && st.Nlink > 1 {
			return nil
		}
		if err := root.Lchown(name, uid, gid); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("give %s to the agent's user: %w", filepath.Join(folder, name), err)
		}
		return nil
	})
}

// outside reports whether a path is named, and in none of the folders.
func outside(path string, folders []string) bool {
	return path != "" && !slices.ContainsFunc(folders, func(folder string) bool {
		within, err := filepath.Rel(folder, path)
		return err == nil && within != ".." && !strings.HasPrefix(within, "../")
	})
}

// letRead lets the group read a file or a folder of root that others may not read.
func letRead(gid int, path string) error {
	return change(path, func(f *os.File, info fs.FileInfo) error {
		if info.Mode()&0o004 != 0 {
			return nil
		}
		mode := info.Mode().Perm() | 0o040
		if info.IsDir() {
			mode |= 0o010
		}
		return errors.Join(f.Chown(-1, gid), f.Chmod(mode))
	})
}

// letOwn gives the user a file of root.
func letOwn(uid, gid int, path string) error {
	return change(path, func(f *os.File, _ fs.FileInfo) error { return f.Chown(uid, gid) })
}

// change changes a file of root in a folder that only root can change.
func change(path string, how func(*os.File, fs.FileInfo) error) error {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ELOOP) {
		return nil // the agent says what is wrong with it
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	folder, err := os.Stat(filepath.Dir(path))
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() && !info.IsDir() || !ofRoot(info) || !ofRoot(folder) || folder.Mode()&0o022 != 0 {
		return nil
	}
	if err := how(f, info); err != nil {
		return fmt.Errorf("let the agent's user read %s: %w", path, err)
	}
	return nil
}

func ofRoot(info fs.FileInfo) bool {
	st, ok := info.Sys().(*syscall.Stat_t)
	return ok && st.Uid == 0
}
