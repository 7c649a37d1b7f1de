package testbed

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// privateTrees are the folders that programs on a host write to, such as nginx's logs or an agent's state. Other hosts
// and the machine do not see what is written there.
var privateTrees = []string{"/etc", "/var/lib", "/var/log"}

// emptyDirs exist on every host and start empty.
var emptyDirs = []string{"/etc/dcol", "/var/lib/dcol", "/var/log/dcol"}

// scratch holds what the host wrote to its private trees.
const scratch = "/run/.lab"

// setUpFiles gives the namespaces in which init was started their own view of the file system, and a host name.
func setUpFiles(c initConfig) error {
	unix.Umask(0o022) // as on any host, other users can read what this process makes
	// This comes first, so that no later mount reaches the machine.
	if err := mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	for i, tree := range privateTrees {
		if err := overlay(tree, filepath.Join(scratch, fmt.Sprint(i))); err != nil {
			return err
		}
	}
	for _, dir := range emptyDirs {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
			return err
		}
	}
	if err := mountSys(); err != nil {
		return err
	}
	if err := mountTUN(); err != nil {
		return err
	}
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if err := unix.Sethostname([]byte(c.Hostname)); err != nil {
		return fmt.Errorf("set hostname %q: %w", c.Hostname, err)
	}
	// The machine's name servers cannot be reached from here. With an empty file, look-ups fail at once instead of
	// timing out.
	for name, content := range map[string]string{
		"/etc/hosts": c.EtcHosts, "/etc/hostname": c.Hostname + "\n", "/etc/resolv.conf": "",
	} {
		// It may be a symbolic link, so remove it first.
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := os.WriteFile(name, []byte(content), 0o644); err != nil {
			return err
		}
	}
	return nil
}

func overlay(tree, at string) error {
	upper, work := filepath.Join(at, "upper"), filepath.Join(at, "work")
	for _, dir := range []string{upper, work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	err := mount("overlay", tree, "overlay", 0, fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", tree, upper, work))
	if errors.Is(err, unix.ENODEV) {
		return fmt.Errorf("%w: the lab needs overlayfs; load it with `modprobe overlay`", err)
	}
	return err
}

// mountSys mounts a sysfs that shows the host's own interfaces. It keeps the machine's control groups in it, and adds a
// BPF file system of the host's own.
func mountSys() error {
	const staging = "/run/.sys"
	if err := os.Mkdir(staging, 0o755); err != nil {
		return err
	}
	if err := mount("sysfs", staging, "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	err := mount("/sys/fs/cgroup", staging+"/fs/cgroup", "", unix.MS_BIND|unix.MS_REC, "")
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	err = mount("bpf", staging+"/fs/bpf", "bpf", 0, "")
	if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENODEV) {
		return err
	}
	return mount(staging, "/sys", "", unix.MS_MOVE, "")
}

// mountTUN lets all users of the host open /dev/net/tun, if the machine has it, as udev does.
func mountTUN() error {
	const folder, device = "/dev/net", "/dev/net/tun"
	var tun unix.Stat_t
	if err := unix.Stat(device, &tun); err != nil {
		return nil //nolint:nilerr // there is none
	}
	if err := mount("tmpfs", folder, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "mode=755"); err != nil {
		return err
	}
	if err := unix.Mknod(device, unix.S_IFCHR, int(tun.Rdev)); err != nil {
		return fmt.Errorf("make %s: %w", device, err)
	}
	return os.Chmod(device, 0o666)
}

func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		what := fstype
		if what == "" {
			what = source
		}
		return fmt.Errorf("mount %s on %s: %w", what, target, err)
	}
	return nil
}
