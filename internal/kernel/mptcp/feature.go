package mptcp

// Feature is a feature that the kernel must have.
type Feature struct {
	Name      string
	MinKernel string // first version with it
	Fix       string
}

// The features dcol builds on.
var (
	MPTCP = Feature{"MPTCP", "5.6", "boot a kernel built with CONFIG_MPTCP=y"}

	Events = Feature{"MPTCP path-manager events", "5.12", "boot a newer kernel"}

	Userspace = Feature{"the userspace path manager of MPTCP", "5.19", "boot a newer kernel"}

	ConnectionDiag = Feature{"socket diagnostics of MPTCP", "5.9",
		"boot a kernel built with CONFIG_INET_MPTCP_DIAG, or run: modprobe mptcp_diag"}

	InactivityTimeout = Feature{"an inactivity timeout of MPTCP connections", "6.7", "boot a newer kernel, or remove client.inactivity_timeout"}
)

func unsupported(f Feature) error {
	return &UnsupportedError{Feature: f.Name, MinKernel: f.MinKernel, Fix: f.Fix}
}
