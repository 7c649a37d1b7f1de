package serving

import (
	"path/filepath"

	"github.com/detour-collective/dcol/internal/config"
	"github.com/detour-collective/dcol/internal/waypoint"
	"github.com/detour-collective/dcol/internal/waypoint/rules"
)

// Files are the files with state of the waypoint role that outlives the agent.
type Files struct {
	Sysctls string // from before the role
	Given   string // the used part of the quota, and whether the waypoint is switched off
	Counts  string // of bytes; in the run directory, because the counted connections end when the host restarts
}

// FilesOf returns the files for these settings.
func FilesOf(settings *config.Config) Files {
	return Files{
		Sysctls: filepath.Join(settings.StateDir, "waypoint-sysctls.json"), Given: filepath.Join(settings.StateDir, "waypoint-given.json"),
		Counts: filepath.Join(settings.RunDir, "waypoint-bytes.json"),
	}
}

// IsLeft reports whether an earlier agent has left state of a waypoint for the next one.
func IsLeft(settings *config.Config) bool { return waypoint.Left(FilesOf(settings).Sysctls) }

// CleanUp removes an earlier agent's waypoint from the host. No agent may run.
func CleanUp(settings *config.Config) error {
	f := FilesOf(settings)
	return waypoint.CleanUp(f.Sysctls, f.Given, f.Counts, rules.Marks(settings.Waypoint.Marks))
}
