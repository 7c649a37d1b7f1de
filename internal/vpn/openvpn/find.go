package openvpn

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// oldest is the first version with disable-dco, and with packets whose size does not depend on the
// peer's version.
var oldest = [2]int{2, 6}

// sbin is where Debian has the program; the path of a user, or of a service, may lack it.
const sbin = "/usr/sbin"

// MissingError means that OpenVPN is not installed.
type MissingError struct{}

func (e *MissingError) Error() string {
	return "OpenVPN is not installed: apt-get install openvpn (it is neither in PATH nor in " + sbin + ")"
}

// OldError means that the installed OpenVPN lacks features that dcol needs.
type OldError struct{ Path, Version string }

func (e *OldError) Error() string {
	return fmt.Sprintf("%s is version %s, dcol needs %d.%d or newer: upgrade the package openvpn (Debian 12 has it)",
		e.Path, e.Version, oldest[0], oldest[1])
}

// Find returns the program's path and version. The error is a *MissingError or an *OldError in
// these cases.
func Find() (path, version string, err error) {
	return find(append(filepath.SplitList(os.Getenv("PATH")), sbin))
}

func find(dirs []string) (path, version string, err error) {
	for _, dir := range dirs {
		// A relative folder in PATH depends on the working directory.
		if !filepath.IsAbs(dir) {
			continue
		}
		if path, err := exec.LookPath(filepath.Join(dir, "openvpn")); err == nil {
			version, err := askVersion(path)
			return path, version, err
		}
	}
	return "", "", &MissingError{}
}

// versionTime bounds the time that a program may take to print its version, even while the host boots.
const versionTime = 30 * time.Second

func askVersion(path string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), versionTime)
	defer cancel()
	// Up to version 2.5 its exit status is 1 even on success, so only the output counts.
	out, failed := exec.CommandContext(ctx, path, "--version").Output()
	var numbers [2]int
	if _, err := fmt.Sscanf(string(out), "OpenVPN %d.%d", &numbers[0], &numbers[1]); err != nil {
		return "", fmt.Errorf("ask %s for its version: it does not answer as OpenVPN does: is it one? (%w)", path, cmp.Or(failed, err))
	}
	version := strings.Fields(string(out))[1]
	if numbers[0] < oldest[0] || numbers[0] == oldest[0] && numbers[1] < oldest[1] {
		return version, &OldError{Path: path, Version: version}
	}
	return version, nil
}
