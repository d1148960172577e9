//! The default system call filter (`seccompProfile: RuntimeDefault`).
//!
//! Calls that let a container reach the kernel's administration answer EPERM unless the container holds the
//! capability the kernel itself would ask for. New namespaces are refused in `clone` by looking at its flags;
//! `clone3` hides its flags in memory, so it answers ENOSYS and C libraries fall back to `clone`.

use std::collections::BTreeMap;

use seccompiler::{
    BackendError, BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch,
};

#[cfg(target_arch = "x86_64")]
const ARCH: TargetArch = TargetArch::x86_64;
#[cfg(target_arch = "aarch64")]
const ARCH: TargetArch = TargetArch::aarch64;
#[cfg(target_arch = "riscv64")]
const ARCH: TargetArch = TargetArch::riscv64;

/// Always refused, whatever the container may do.
const NEVER: &[i64] = &[
    libc::SYS_add_key,
    libc::SYS_request_key,
    libc::SYS_keyctl,
    libc::SYS_kexec_load,
    libc::SYS_kexec_file_load,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_nfsservctl,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_io_uring_enter,
    libc::SYS_io_uring_register,
    libc::SYS_move_pages,
];

/// Refused unless the container has the capability.
const UNLESS: &[(&str, &[i64])] = &[
    (
        "CAP_SYS_ADMIN",
        &[
            libc::SYS_mount,
            libc::SYS_umount2,
            libc::SYS_pivot_root,
            libc::SYS_unshare,
            libc::SYS_setns,
            libc::SYS_quotactl,
            libc::SYS_move_mount,
            libc::SYS_open_tree,
            libc::SYS_fsopen,
            libc::SYS_fsconfig,
            libc::SYS_fsmount,
            libc::SYS_fspick,
            libc::SYS_mount_setattr,
            libc::SYS_sethostname,
            libc::SYS_setdomainname,
            libc::SYS_fanotify_init,
        ],
    ),
    ("CAP_SYS_MODULE", &[libc::SYS_init_module, libc::SYS_finit_module, libc::SYS_delete_module]),
    ("CAP_SYS_TIME", &[libc::SYS_settimeofday, libc::SYS_clock_settime, libc::SYS_clock_adjtime]),
    ("CAP_SYS_BOOT", &[libc::SYS_reboot]),
    ("CAP_SYS_CHROOT", &[libc::SYS_chroot]),
    ("CAP_SYS_PTRACE", &[libc::SYS_kcmp, libc::SYS_pidfd_getfd, libc::SYS_process_madvise]),
    ("CAP_SYS_NICE", &[libc::SYS_mbind, libc::SYS_set_mempolicy, libc::SYS_get_mempolicy]),
    ("CAP_SYSLOG", &[libc::SYS_syslog]),
    ("CAP_SYS_PACCT", &[libc::SYS_acct]),
    ("CAP_SYS_TTY_CONFIG", &[libc::SYS_vhangup]),
    ("CAP_DAC_READ_SEARCH", &[libc::SYS_open_by_handle_at]),
    #[cfg(target_arch = "x86_64")]
    ("CAP_SYS_RAWIO", &[libc::SYS_iopl, libc::SYS_ioperm]),
];

/// Refused unless the container has one of two capabilities.
const UNLESS_EITHER: &[(&str, i64)] =
    &[("CAP_BPF", libc::SYS_bpf), ("CAP_PERFMON", libc::SYS_perf_event_open)];

const NEW_NAMESPACES: &[i32] = &[
    libc::CLONE_NEWNS,
    libc::CLONE_NEWUTS,
    libc::CLONE_NEWIPC,
    libc::CLONE_NEWUSER,
    libc::CLONE_NEWPID,
    libc::CLONE_NEWNET,
    libc::CLONE_NEWCGROUP,
];

/// The filters to install, in order, for a container with these capabilities.
pub(crate) fn default_filters(capabilities: &[String]) -> Result<Vec<BpfProgram>, BackendError> {
    let has = |name: &str| capabilities.iter().any(|c| c == name);
    let admin = has("CAP_SYS_ADMIN");
    let mut denied: BTreeMap<i64, Vec<SeccompRule>> = NEVER.iter().map(|call| (*call, vec![])).collect();
    for (capability, calls) in UNLESS.iter().filter(|(capability, _)| !has(capability)) {
        // The administrator's capability covers accounting, hostname and the like, but not modules or raw I/O.
        if admin && *capability == "CAP_SYSLOG" {
            continue;
        }
        denied.extend(calls.iter().map(|call| (*call, vec![])));
    }
    for (capability, call) in UNLESS_EITHER {
        if !admin && !has(capability) {
            denied.insert(*call, vec![]);
        }
    }
    let mut filters = Vec::new();
    if !admin {
        let rules: Result<Vec<_>, _> = NEW_NAMESPACES.iter().map(|flag| clone_with(*flag as u64)).collect();
        denied.insert(libc::SYS_clone, rules?);
        filters.push(compile(BTreeMap::from([(libc::SYS_clone3, vec![])]), libc::ENOSYS)?);
    }
    filters.push(compile(denied, libc::EPERM)?);
    Ok(filters)
}

fn clone_with(flag: u64) -> Result<SeccompRule, BackendError> {
    let condition = SeccompCondition::new(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(flag), flag)?;
    SeccompRule::new(vec![condition])
}

fn compile(denied: BTreeMap<i64, Vec<SeccompRule>>, errno: i32) -> Result<BpfProgram, BackendError> {
    SeccompFilter::new(denied, SeccompAction::Allow, SeccompAction::Errno(errno as u32), ARCH)?.try_into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_container_without_capabilities_gets_two_filters_and_an_administrator_one() {
        assert_eq!(default_filters(&[]).expect("compiles").len(), 2);
        assert_eq!(default_filters(&["CAP_SYS_ADMIN".into()]).expect("compiles").len(), 1);
    }
}
