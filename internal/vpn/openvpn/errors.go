package openvpn

import (
	"fmt"
)

// MissingError means that OpenVPN is not installed.
type MissingError struct{ Looked []string } // folders

func (e *MissingError) Error() string {
	return fmt.Sprintf("OpenVPN is not installed: apt-get install openvpn (it is in none of the %d folders of PATH and /usr/sbin)", len(e.Looked))
}

// OldError means that the installed OpenVPN lacks features that dcol needs.
type OldError struct{ Path, Version string }

func (e *OldError) Error() string {
	return fmt.Sprintf("%s is version %s, dcol needs %d.%d or newer: upgrade the package openvpn (Debian 12 has it)",
		e.Path, e.Version, oldest[0], oldest[1])
}

// TUNError means that a tunnel interface could not be created.
type TUNError struct {
	Interface string
	Mend      string
	Err       error
}

func (e *TUNError) Error() string {
	return fmt.Sprintf("make tunnel interface %s: %v: %s", e.Interface, e.Err, e.Mend)
}

func (e *TUNError) Unwrap() error { return e.Err }

// PortError means that the UDP port is in use.
type PortError struct{ Port int }

func (e *PortError) Error() string {
	return fmt.Sprintf("UDP port %[1]d is in use: choose another one, or end the program that has it (ss -ulnp sport = %[1]d)", e.Port)
}

// ExitError is the reason why an openvpn ended.
type ExitError struct {
	Status string // such as "exit status 1"
	Words  string // its last message that looks like a reason; may be empty
}

func (e *ExitError) Error() string {
	if e.Words == "" {
		return "openvpn ended: " + e.Status
	}
	return fmt.Sprintf("openvpn ended: %s (%s)", e.Words, e.Status)
}
