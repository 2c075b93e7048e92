package heddle;

import java.io.*;
import java.math.BigInteger;
import java.net.*;
import java.nio.file.*;
import java.nio.file.attribute.*;
import java.security.MessageDigest;
import java.util.*;
import java.util.jar.JarFile;

/**
 * The program that the launcher starts: that of HEDDLE_BINARY, the jar itself (a program with a jar appended), or a file
 * "heddle" beside the jar. One that is not executable is copied to a private cache, under its SHA-256 digest.
 */
final class ProgramFile {
    private static final Set<PosixFilePermission> OWN = PosixFilePermissions.fromString("rwx------");

    static Path find() throws Exception {
        String named = System.getenv("HEDDLE_BINARY");
        if (named != null && !named.isEmpty()) {
            return executable(Paths.get(named), "HEDDLE_BINARY = " + named + " is not a file");
        }
        Path jar = jar();
        byte[] head = new byte[20];
        try (DataInputStream in = new DataInputStream(Files.newInputStream(jar))) {
            in.readFully(head);
        }
        if (head[0] != 0x7f || head[1] != 'E') {
            Path beside = jar.toAbsolutePath().resolveSibling("heddle");
            String missing = jar + " contains no program and " + beside + " does not exist; set HEDDLE_BINARY";
            return executable(beside, missing);
        }
        // e_machine of the ELF header: 62 is x86-64, 183 AArch64.
        String machine = System.getProperty("os.arch");
        if ((head[18] & 0xff | (head[19] & 0xff) << 8) != (machine.equals("aarch64") ? 183 : 62)) {
            throw new IOException("the program in " + jar + " is not for this machine (" + machine + ")");
        }
        return executable(jar, "");
    }

    /** The jar with this class. RunJar unpacks it and puts the folder first, so the class comes from the folder. */
    private static Path jar() throws Exception {
        List<URL> places = new ArrayList<>();
        places.add(ProgramFile.class.getProtectionDomain().getCodeSource().getLocation());
        ClassLoader loader = Thread.currentThread().getContextClassLoader();
        if (loader instanceof URLClassLoader) {
            places.addAll(Arrays.asList(((URLClassLoader) loader).getURLs()));
        }
        for (URL place : places) {
            File file = new File(place.getProtocol().equals("file") ? place.toURI().getPath() : "");
            if (file.isFile()) {
                try (JarFile jar = new JarFile(file)) {
                    if (jar.getEntry("heddle/Launcher.class") != null) {
                        return file.toPath();
                    }
                }
            }
        }
        throw new IOException("the jar is not on the class path; set HEDDLE_BINARY");
    }

    /** The program, or its copy in the cache if it cannot be executed where it is. */
    private static Path executable(Path program, String missing) throws Exception {
        if (!Files.isRegularFile(program)) {
            throw new IOException(missing);
        }
        if (Files.isExecutable(program)) {
            return program.toAbsolutePath();
        }
        MessageDigest sha = MessageDigest.getInstance("SHA-256");
        try (InputStream in = Files.newInputStream(program)) {
            byte[] bytes = new byte[1 << 16];
            for (int length = in.read(bytes); length > 0; length = in.read(bytes)) {
                sha.update(bytes, 0, length);
            }
        }
        String name = String.format("heddle-%064x", new BigInteger(1, sha.digest()));
        Object user = Files.getAttribute(Paths.get("/proc/self/"), "unix:uid");
        String home = System.getenv("XDG_CACHE_HOME") != null ? System.getenv("XDG_CACHE_HOME")
            : System.getenv("HOME") + "/.cache";
        try {
            return copy(program, privateDir(Paths.get(home, "heddle"), user), name);
        } catch (FileSystemException readOnly) {
            Path temporary = Paths.get(System.getProperty("java.io.tmpdir"), "heddle-" + user);
            return copy(program, privateDir(temporary, user), name);
        }
    }

    /** The folder "bin" in a folder that no other user can change. */
    private static Path privateDir(Path folder, Object user) throws IOException {
        Path bin = folder.resolve("bin");
        Files.createDirectories(folder.getParent());
        for (Path each : new Path[] {folder, bin}) {
            try {
                Files.createDirectory(each, PosixFilePermissions.asFileAttribute(OWN));
            } catch (FileAlreadyExistsException used) {
                Object owner = Files.getAttribute(each, "unix:uid", LinkOption.NOFOLLOW_LINKS);
                int mode = (int) Files.getAttribute(each, "unix:mode", LinkOption.NOFOLLOW_LINKS);
                if (!user.equals(owner) || (mode & 022) != 0) {
                    throw new IOException("other users can change the cache directory " + each + "; remove it");
                }
            }
        }
        return bin;
    }

    private static Path copy(Path program, Path folder, String name) throws IOException {
        Path copy = folder.resolve(name);
        if (!Files.isExecutable(copy)) {
            Path part = Files.createTempFile(folder, ".", name);
            try {
                Files.copy(program, part, StandardCopyOption.REPLACE_EXISTING);
                Files.setPosixFilePermissions(part, OWN);
                Files.move(part, copy, StandardCopyOption.ATOMIC_MOVE);
            } finally {
                Files.deleteIfExists(part);
            }
        }
        return copy;
    }
}
