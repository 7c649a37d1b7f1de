package sockops

import (
	"slices"
	"strings"
	"testing"
)

func TestCgroupMounts(t *testing.T) {
	for _, c := range []struct {
		name, mountinfo string
		want            []string
	}{
		{"unified", "25 22 0:23 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n", []string{"/sys/fs/cgroup"}},
		{"hybrid", `31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw
37 31 0:34 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids
38 31 0:35 / /sys/fs/cgroup/unified rw shared:1 master:2 - cgroup2 cgroup2 rw
`, []string{"/sys/fs/cgroup/unified"}},
		{"parts of it, too", `40 1 0:35 /system.slice/a /run/a rw - cgroup2 cgroup2 rw
41 1 0:35 / /run/whole\040hierarchy\134 rw - cgroup2 cgroup2 rw
42 1 0:35 /system.slice /run/b rw - cgroup2 cgroup2 rw
43 1 0:35 /../.. /run/above rw - cgroup2 cgroup2 rw
`, []string{"/run/above", `/run/whole hierarchy\`, "/run/b", "/run/a"}},
		{"none", "31 23 0:28 / /sys/fs/cgroup rw - tmpfs cgroup2 rw\n", nil},
		{"nonsense", "\n-\n - cgroup2 \na b - cgroup2 c\n", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := cgroupMounts(strings.NewReader(c.mountinfo))
			if err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%q, %v; want %q", got, err, c.want)
			}
		})
	}
}
