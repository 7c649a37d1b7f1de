package main

import (
	"bytes"
	"io/fs"
	"path"
	"strconv"
	"strings"
)

const (
	// connectionMemory is the memory of a live connection with two subflows, in bytes. `make bench-analyse` measured 17 KB.
	connectionMemory = 18 << 10
	// fewestConnections and mostConnections bound the default of --max-connections.
	fewestConnections = 1000
	mostConnections   = 1_000_000
)

// affordableConnections returns the number of connections that fit into half of the memory that is available to this
// process. root is the root of the file system.
func affordableConnections(root fs.FS) int {
	available, ok := availableMemory(root)
	if !ok {
		return mostConnections
	}
	return int(min(max(available/2/connectionMemory, fewestConnections), mostConnections))
}

// availableMemory returns the available memory in bytes: that of the host, or what the cgroups of this process leave if that is
// less.
func availableMemory(root fs.FS) (available int64, ok bool) {
	take := func(n int64) {
		if !ok || n < available {
			available, ok = max(n, 0), true
		}
	}
	meminfo, _ := fs.ReadFile(root, "proc/meminfo")
	for line := range bytes.Lines(meminfo) {
		if f := strings.Fields(string(line)); len(f) == 3 && f[0] == "MemAvailable:" {
			if n, err := strconv.ParseInt(f[1], 10, 64); err == nil {
				take(n << 10)
			}
		}
	}
	cgroups, _ := fs.ReadFile(root, "proc/self/cgroup")
	for line := range bytes.Lines(cgroups) {
		group, isUnified := strings.CutPrefix(strings.TrimSpace(string(line)), "0::/")
		if !isUnified {
			continue
		}
		for dir := path.Join("sys/fs/cgroup", group); strings.HasPrefix(dir, "sys/fs/cgroup"); dir = path.Dir(dir) {
			limit, limited := numberIn(root, path.Join(dir, "memory.max"))
			used, known := numberIn(root, path.Join(dir, "memory.current"))
			if limited && known {
				take(limit - used)
			}
		}
	}
	return available, ok
}

// numberIn reads a file with one number.
func numberIn(root fs.FS, name string) (n int64, ok bool) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return 0, false
	}
	n, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil
}
