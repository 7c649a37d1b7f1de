package openvpn

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"
)

// oldest is the first version with disable-dco, and with packets whose size does not depend on the
// peer's version.
var oldest = [2]int{2, 6}

// sbin is where Debian has the program; the path of a user, or of a service, may lack it.
const sbin = "/usr/sbin"

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
		path = filepath.Join(dir, "openvpn")
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			version, err = askVersion(path)
			return path, version, err
		}
	}
	return "", "", &MissingError{Looked: dirs}
}

// versionTime is how long a program may take to print its version, even while the host boots.
const versionTime = 30 * time.Second

func askVersion(path string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), versionTime)
	defer cancel()
	// Up to version 2.5 its exit status is 1 even on success, so only the output counts.
	out, err := exec.CommandContext(ctx, path, "--version").Output()
	version, numbers, ok := parseVersion(string(out))
	switch {
	case !ok && err != nil:
		return "", fmt.Errorf("ask %s for its version: %w", path, err)
	case !ok:
		return "", fmt.Errorf("ask %s for its version: it does not say so as OpenVPN does: is it one?", path)
	case numbers[0] < oldest[0] || numbers[0] == oldest[0] && numbers[1] < oldest[1]:
		return version, &OldError{Path: path, Version: version}
	}
	return version, nil
}

var versionLine = regexp.MustCompile(`^OpenVPN ((\d{1,4})\.(\d{1,4})\S*)`)

// parseVersion reads the first line of `openvpn --version`.
func parseVersion(out string) (version string, numbers [2]int, ok bool) {
	m := versionLine.FindStringSubmatch(out)
	if m == nil {
		return "", numbers, false
	}
	for i := range numbers {
		n, err := strconv.Atoi(m[2+i])
		if err != nil {
			return "", numbers, false
		}
		numbers[i] = n
	}
	return m[1], numbers, true
}
