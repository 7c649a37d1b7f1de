package netstate

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const sysctlRoot = "/proc/sys"

// Sysctl reads a kernel parameter. The key has slashes ("net/ipv4/ip_forward"), because names of interfaces may
// contain dots. If the parameter does not exist, the error is fs.ErrNotExist.
func Sysctl(key string) (string, error) {
	path, err := sysctlPath(key)
	if err != nil {
		return "", err
	}
	value, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read sysctl %s: %w", key, err)
	}
	return strings.TrimSpace(string(value)), nil
}

// SetSysctl writes a kernel parameter below net without recording its old value; see Record. Others it refuses, because
// `dcol down` runs as root and writes what a Record names, which is a file of the agent's user.
func SetSysctl(key, value string) error {
	if !strings.HasPrefix(filepath.Clean(key), "net/") {
		return fmt.Errorf("sysctl key %q: only those below net are changed", key)
	}
	path, err := sysctlPath(key)
	if err != nil {
		return err
	}
	// O_TRUNC and O_CREAT mean nothing in /proc; without them a missing key stays ErrNotExist.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("set sysctl %s=%s: %w%s", key, value, err, fixForWrite(err))
	}
	_, err = f.WriteString(value)
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return fmt.Errorf("set sysctl %s=%s: %w%s", key, value, err, fixForWrite(err))
	}
	return nil
}

func sysctlPath(key string) (string, error) {
	if key == "" || !filepath.IsLocal(key) {
		return "", fmt.Errorf("sysctl key %q: want a path below %s such as net/ipv4/ip_forward", key, sysctlRoot)
	}
	return filepath.Join(sysctlRoot, key), nil
}

func fixForWrite(err error) string {
	if errors.Is(err, fs.ErrPermission) {
		return " (run as root, and check that /proc/sys is not mounted read-only)"
	}
	return ""
}
