package main

import (
	"testing"
	"testing/fstest"
)

func TestAffordableConnections(t *testing.T) {
	file := func(text string) *fstest.MapFile { return &fstest.MapFile{Data: []byte(text)} }
	meminfo := file("MemTotal:        8000000 kB\nMemFree:          100000 kB\nMemAvailable:    4194304 kB\n")
	for name, test := range map[string]struct {
		root fstest.MapFS
		want int
	}{
		"a host":                 {fstest.MapFS{"proc/meminfo": meminfo}, 116508},
		"little memory":          {fstest.MapFS{"proc/meminfo": file("MemAvailable: 1000 kB\n")}, fewestConnections},
		"much memory":            {fstest.MapFS{"proc/meminfo": file("MemAvailable: 999999999 kB\n")}, mostConnections},
		"nothing to read":        {fstest.MapFS{}, mostConnections},
		"a cgroup without limit": {fstest.MapFS{"proc/meminfo": meminfo, "proc/self/cgroup": file("0::/a\n"), "sys/fs/cgroup/a/memory.max": file("max\n"), "sys/fs/cgroup/a/memory.current": file("5\n")}, 116508},
		"a limit above": {fstest.MapFS{"proc/meminfo": meminfo, "proc/self/cgroup": file("0::/a/b\n"),
			"sys/fs/cgroup/a/memory.max": file("536870912\n"), "sys/fs/cgroup/a/memory.current": file("268435456\n"), "sys/fs/cgroup/a/b/memory.max": file("max\n")}, 7281},
		"in a cgroup of its own": {fstest.MapFS{"proc/meminfo": meminfo, "proc/self/cgroup": file("0::/\n"),
			"sys/fs/cgroup/memory.max": file("536870912\n"), "sys/fs/cgroup/memory.current": file("0\n")}, 14563},
		"a limit that is used up": {fstest.MapFS{"proc/meminfo": meminfo, "proc/self/cgroup": file("0::/\n"),
			"sys/fs/cgroup/memory.max": file("5\n"), "sys/fs/cgroup/memory.current": file("10\n")}, fewestConnections},
	} {
		if got := affordableConnections(test.root); got != test.want {
			t.Errorf("%s: %d connections, want %d", name, got, test.want)
		}
	}
}
