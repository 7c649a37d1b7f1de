package sockops

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Error reports why there is no cgroup to attach to, and how to fix it.
type Error struct {
	Fix string
	Err error
	// Occupied reports whether the cgroup exists, but its programs allow no other.
	Occupied bool
}

func (e *Error) Error() string { return fmt.Sprintf("%v (%s)", e.Err, e.Fix) }

func (e *Error) Unwrap() error { return e.Err }

// OpenCgroup opens a folder of the cgroup v2 hierarchy, or its root if path is empty. If the caller can fix the
// problem, the error is an [*Error].
func OpenCgroup(path string) (*os.File, error) {
	if path != "" {
		return openCgroup2(path)
	}
	mounts, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find where cgroup v2 is mounted: %w", err)
	}
	defer mounts.Close()
	places, err := cgroupMounts(mounts)
	if err != nil {
		return nil, fmt.Errorf("find where cgroup v2 is mounted: %w", err)
	}
	why := errors.New("cgroup v2 is not mounted")
	for _, place := range places {
		file, err := openCgroup2(place)
		if err == nil {
			return file, nil
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("cgroup v2 cannot be seen: another file system is mounted over %s", place)
		} else if u, ok := errors.AsType[*Error](err); ok {
			err = u.Err // the advice in u is for a configured folder
		}
		why = err
	}
	return nil, &Error{
		Fix: "mount -t cgroup2 none /sys/fs/cgroup, or another empty folder",
		Err: why,
	}
}

func openCgroup2(path string) (*os.File, error) {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrPermission) {
		return nil, &Error{Fix: "let the agent's user read the folder, as systemd does: chmod 755 " + path, Err: fmt.Errorf("open the cgroup: %w", err)}
	}
	if err != nil {
		return nil, &Error{Fix: "name a folder below the place where cgroup v2 is mounted", Err: fmt.Errorf("open the cgroup: %w", err)}
	}
	var system unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &system); err != nil {
		file.Close()
		return nil, fmt.Errorf("examine %s: %w", path, err)
	}
	if system.Type != unix.CGROUP2_SUPER_MAGIC {
		file.Close()
		return nil, &Error{
			Fix: "name a folder below the place where cgroup v2 is mounted (findmnt -t cgroup2)",
			Err: fmt.Errorf("%s is not a folder of cgroup v2", path),
		}
	}
	return file, nil
}

// cgroupMounts returns the mount points of cgroup v2. Those that show most of the hierarchy come first: a bind mount
// may show only a part of it.
func cgroupMounts(mountinfo io.Reader) ([]string, error) {
	type mount struct{ root, place string }
	var found []mount
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		// proc_pid_mountinfo(5): id, parent, device, root, place, options, any number of tags, a hyphen, type, ...
		mounted, source, ok := strings.Cut(lines.Text(), " - ")
		fields := strings.Fields(mounted)
		if !ok || len(fields) < 6 || !strings.HasPrefix(source, "cgroup2 ") {
			continue
		}
		found = append(found, mount{root: fields[3], place: unescape.Replace(fields[4])})
	}
	slices.SortStableFunc(found, func(a, b mount) int { return depth(a.root) - depth(b.root) })
	places := make([]string, len(found))
	for i, m := range found {
		places[i] = m.place
	}
	return places, lines.Err()
}

// depth returns the depth of a folder below this process's root of the hierarchy. Folders above that root begin with
// /.. .
func depth(root string) int {
	n := 0
	for part := range strings.SplitSeq(root, "/") {
		switch part {
		case "":
		case "..":
			n--
		default:
			n++
		}
	}
	return n
}

// unescape decodes the kernel's escapes in mountinfo.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\043`, "#", `\134`, `\`)
